"""Ranks that live but do nothing: noticed by their heartbeat, not by a collective's time-out.

A recorder beats once a second from a thread of its own. A rank hangs when

    stopped           its process is stopped (SIGSTOP, a debugger), or
    still             it neither beats nor uses any CPU: all its threads wait, its interpreter too

for the whole time-out. A rank that is only slow (a long compile, a pickle that keeps the
interpreter busy, waiting for data) beats or uses CPU, and is left alone.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from torchett.record.layout import BEAT_AT, BLOCK_MAGIC, STEPPED_AT

_HEAD = struct.Struct(f"<8s8xq{BEAT_AT - 24}xq{STEPPED_AT - BEAT_AT - 8}x?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What can be seen of a process: its state, CPU time used, last heartbeat (0: it has none)."""

    state: str
    cpu_ticks: int
    beat_ns: int
    stepped: bool = False


class Watch:
    """Remembers since when each process has shown no life."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_ns = int(timeout_s * 1e9)
        self._last: dict[int, tuple[Life, int]] = {}  # pid → what was seen, since when unchanged

    def hung(self, lives: Mapping[int, Life], now_ns: int) -> list[int]:
        """The processes that have shown no life for the whole time-out."""
        found = []
        for pid, life in lives.items():
            before = self._last.get(pid)
            if before is None or _lives(before[0], life):
                self._last[pid] = life, now_ns
            elif now_ns - before[1] >= self._timeout_ns:
                found.append(pid)
        self._last = {pid: seen for pid, seen in self._last.items() if pid in lives}
        return found


def _lives(before: Life, now: Life) -> bool:
    """Whether there was a sign of life in between; a process that never beat needs none."""
    if now.state in "Tt":
        return before.state not in "Tt"
    return not now.beat_ns or now.beat_ns != before.beat_ns or now.cpu_ticks != before.cpu_ticks


def look(pids: Mapping[int, int], folder: Path) -> dict[int, Life]:
    """The life of each process, given by its rank; `folder` holds their flight records."""
    lives = {}
    for rank, pid in pids.items():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue  # it is over: the agent sees that
        fields = stat.rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        beat, stepped = _beat(folder, rank, pid)
        lives[pid] = Life(state=fields[0], cpu_ticks=ticks, beat_ns=beat, stepped=stepped)
    return lives


def _beat(folder: Path, rank: int, pid: int) -> tuple[int, bool]:
    """The last heartbeat of a rank and whether it has stepped, if that process keeps a record here.

    Not of whoever has this pid: nodes that share the folder may each have one.
    """
    for path in chain((folder / f"rank-{rank}.live",), folder.glob(f"rank-{rank}~*.live")):
        try:
            with path.open("rb") as file:
                magic, writer, beat, stepped = _HEAD.unpack(file.read(_HEAD.size))
        except (OSError, struct.error):
            continue
        if magic == BLOCK_MAGIC and writer == pid:
            return beat, stepped
    return 0, False
