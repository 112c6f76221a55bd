"""What one rank does at this instant, read from its ring without waiting for it."""

import mmap
import os
from pathlib import Path

import numpy as np

from torchett.record.flight.format import (
    ACCOUNT_SHIFT,
    CHECKPOINT,
    ENTRY,
    LIVE_BYTES,
    RING,
    SLOTS,
    SPAN,
    STEP,
)
from torchett.record.flight.ring import open_spans, rings

_ENTRY = np.dtype([(n, "<i8") for n in ("wait", "t0", "t1", "index", "meta", "seq")])
assert _ENTRY.itemsize == ENTRY.size


class LiveRank:
    """The ring of the lowest rank of a run's first attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), LIVE_BYTES, access=mmap.ACCESS_READ)
        self._entries = np.frombuffer(self._map, dtype=_ENTRY, count=SLOTS, offset=RING)
        self.pid = int(path.stem.split("-")[-2])

    @staticmethod
    def of(run: Path) -> "LiveRank | None":
        """The lowest rank that has begun its record; None if none has."""
        found = []
        for path in rings(run):
            try:
                if path.stat().st_size == LIVE_BYTES:
                    found.append((int(path.stem.split("-")[3]), path))
            except OSError:
                continue
        return LiveRank(min(found)[1]) if found else None

    @property
    def alive(self) -> bool:
        return os.path.exists(f"/proc/{self.pid}")

    def doing(self) -> set[int]:
        """Accounts of the foreground spans that are open."""
        return {account for account, _, background in open_spans(self._map) if not background}

    def newest(self, count: int = 256) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        """The last entries, oldest first, copied."""
        seq = np.array(self._entries["seq"])
        last = int(seq.max())
        slots = (np.arange(max(0, last - count), last)) % SLOTS
        return np.array(self._entries[slots])

    def steps(self) -> list[tuple[int, int]]:
        """Begin and end of the last steps, in nanoseconds of the monotonic clock."""
        seen = self.newest()
        mine = seen[(seen["meta"] & 0xFF) == STEP]
        return [(int(one["t0"]), int(one["t1"])) for one in mine]

    def save_is_under_way(self, blocked: int) -> bool:
        """Whether a save has begun (`blocked` is its account) that is not durable yet."""
        if blocked in self.doing():
            return True
        seen = self.newest()
        kinds = seen["meta"] & 0xFF
        accounts = seen["meta"] >> ACCOUNT_SHIFT & 0xFFFF
        saves = np.flatnonzero((kinds == SPAN) & (accounts == blocked))
        durable = np.flatnonzero(kinds == CHECKPOINT)
        return bool(len(saves)) and (not len(durable) or durable[-1] < saves[-1])
