"""The writer of a flight record: entries into the ring, folded halves of it into the log."""

import errno
import json
import logging
import mmap
import os
import struct
import threading
from itertools import count
from pathlib import Path
from typing import Any

from torchett.model.accounts import NAMES
from torchett.record import fold
from torchett.record.clock import Anchor, now_ns
from torchett.record.layout import (
    BACKGROUND,
    BEAT_AT,
    BLOCK,
    BLOCK_MAGIC,
    DROPPED_AT,
    ENTRY,
    FORMAT,
    FRAMES,
    HALF,
    LIVE_BYTES,
    NOTE,
    OPEN,
    OPEN_AT,
    OPEN_SLOTS,
    RING,
    SLOTS,
    SPAN,
    STEP,
    Chunk,
    Damage,
    attempt_folder,
    chunk,
    chunks,
    log_path,
)

log = logging.getLogger("torchett")

_DETAIL = 64  # entries a finished record keeps one by one
_PENDING_BYTES = 1 << 20  # held back while the disk is full, before anything is dropped


class FlightWriter:
    """One rank's record, being written. Nothing here raises once it is open.

    The hot path is `ENTRY.pack_into` by the recorder itself; this class makes the files, moves
    folded entries from the ring to the log, and keeps the table of open spans.
    """

    def __init__(
        self, run: Path, *, attempt: int, restart: int, rank: int, facts: dict[str, Any]
    ) -> None:
        """Open the record, or raise OSError where it cannot be made."""
        self._attempt, self._rank = attempt, rank
        folder = attempt_folder(run, attempt, restart)
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._log = _claim(folder, rank)
        try:
            header = {"format": FORMAT, **facts, "accounts": NAMES}
            _write_all(self._log, json.dumps(header).encode() + b"\n")
            self.live_path = self.path.with_suffix(".live")
            self.ring = _mapped(self.live_path)
        except OSError:
            os.close(self._log)
            raise
        self.next_seq = count(0).__next__
        self._reach = 0  # entries below this one are in the log
        self._begun = False  # the first step is in the log
        self._pending = b""
        self._dropped = 0
        self._draining = threading.Lock()
        self._accounts = len(NAMES)
        self._free = list(range(OPEN_SLOTS))

    # Spans that are not over yet -------------------------------------------------------------

    def open_span(self, account: int, t0_ns: int, background: bool) -> int:
        """Note that a span has begun; the slot to close it by (−1: the table is full)."""
        try:
            slot = self._free.pop()
        except IndexError:
            return -1
        OPEN.pack_into(self.ring, OPEN_AT + slot * OPEN.size, account + 1, t0_ns, background)
        return slot

    def close_span(self, slot: int) -> None:
        if slot >= 0:
            OPEN.pack_into(self.ring, OPEN_AT + slot * OPEN.size, 0, 0, 0)
            self._free.append(slot)

    def beat(self) -> None:
        """A sign of life, for whoever watches from outside."""
        self.ring[BEAT_AT : BEAT_AT + 8] = now_ns().to_bytes(8, "little")

    # The log ---------------------------------------------------------------------------------

    def drain(self, seq: int) -> None:
        """Make room for entry `seq`: fold all but the newest half of the ring into the log."""
        if not self._draining.acquire(blocking=False):
            return
        try:
            self._fold(max(seq - HALF, self._reach))
        except Exception as error:  # never into the loop: what could not be folded is dropped
            self._drop(HALF)
            log.warning("torchett: entries of the flight record were lost: %r", error)
        finally:
            self._draining.release()

    def name_account(self, name: str) -> int:
        """A number for a user's own account, told to the reader before it is used."""
        number, self._accounts = self._accounts, self._accounts + 1
        self.note({"account": number, "name": name})
        return number

    def note(self, fact: dict[str, Any]) -> None:
        """Append a fact that is neither span nor step."""
        payload = json.dumps(fact).encode()
        self._append(
            chunk(NOTE, payload, attempt=self._attempt, rank=self._rank, reach=self._reach)
        )

    def close(self, seq: int, fact: dict[str, Any]) -> None:
        """Fold what is left (the newest entries stay as they are) and let the ring go."""
        if not self._draining.acquire(timeout=1.0):
            return
        try:
            self._fold(max(seq - _DETAIL, self._reach))
            self._fold(seq, detail=True)
            self.note(fact)
            if not self._pending:
                os.unlink(self.live_path)
            os.close(self._log)
        except Exception:
            pass  # the ring stays on disk, and a reader finds the rest there
        # The lock stays taken: a span that ends after this has nowhere to go and is let go.

    def _fold(self, upto: int, detail: bool = False) -> None:
        """Move entries up to `upto` from the ring to the log."""
        begin = max(self._reach, upto - SLOTS)
        raw = raw_entries(self.ring, begin, upto)
        missing = begin - self._reach
        self._reach = upto
        still_open = open_begins(self.ring)
        frames = None
        if self._begun and not still_open and not detail:
            frames = fold.fold_uniform(raw, begin)
        if frames is None:
            entries = whole_entries(raw, begin)
            missing += upto - begin - len(entries)
            first = not self._begun
            self._begun = self._begun or any(entry[4] & 0xFF == STEP for entry in entries)
            frames = fold.plain(entries) if detail else fold.fold(entries, still_open, first)
        if missing:
            self._drop(missing)
        if frames:
            lane = {"attempt": self._attempt, "rank": self._rank}
            self._append(chunk(FRAMES, frames, **lane, reach=upto))

    def _append(self, data: bytes) -> None:
        """Write, or keep for later what a full disk does not take; in order, never torn."""
        self._pending += data
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._log, self._pending) :]
        except OSError as error:
            if error.errno == errno.EINTR:
                return
            if len(self._pending) > _PENDING_BYTES:
                self._pending = self._pending[: -len(data)]
                self._drop(1)

    def _drop(self, entries: int) -> None:
        self._dropped += entries
        self.ring[DROPPED_AT : DROPPED_AT + 8] = self._dropped.to_bytes(8, "little")


def raw_entries(ring: "mmap.mmap | bytes", begin: int, end: int) -> bytes:
    """Entries begin…end (at most a ring of them) as they lie there, whole or not."""
    a, b = RING + begin % SLOTS * ENTRY.size, RING + end % SLOTS * ENTRY.size
    if begin == end:
        return b""
    return ring[a:b] if a < b else ring[a:LIVE_BYTES] + ring[RING:b]


def whole_entries(raw: bytes, begin: int) -> list[fold.Entry]:
    """Those of the raw entries that are what they should be: entry begin, begin + 1, …"""
    found = ENTRY.iter_unpack(raw)
    return [entry for seq, entry in enumerate(found, begin + 1) if entry[5] == seq]


def open_begins(ring: "mmap.mmap | bytes") -> list[int]:
    """When the foreground spans that are not over began."""
    return [t0 for _, t0, background in _open_table(ring) if not background]


def _open_table(ring: "mmap.mmap | bytes") -> list[tuple[int, int, int]]:
    """Spans that are not over: account, begin, background."""
    table = OPEN.iter_unpack(ring[OPEN_AT : OPEN_AT + OPEN_SLOTS * OPEN.size])
    return [(account - 1, t0, background) for account, t0, background in table if account]


def seal(path: Path, ended: Anchor, ended_ns: int) -> None:
    """Fold what a dead rank left in its ring into its log, as if it had closed it.

    Spans that were open end at `ended_ns`, on the clock of `ended`: a rank of another host is
    not ours to bury. A ring that cannot be sealed is left as it is: readers
    take it from there.
    """
    live_path = path.with_suffix(".live")
    try:
        ring = live_path.read_bytes()
        data = path.read_bytes()
        magic, _, slots, _, dropped = BLOCK.unpack_from(ring)
        if magic != BLOCK_MAGIC or slots != SLOTS or len(ring) != LIVE_BYTES or dropped:
            return
        header, newline, _ = data.partition(b"\n")
        facts = json.loads(header) if newline else {}
        if Anchor.from_json(facts.get("anchor")).clock != ended.clock:
            return
        pieces = list(chunks(memoryview(data)[len(header) + 1 :]))
        if facts.get("format") != FORMAT or any(isinstance(piece, Damage) for piece in pieces):
            return
        logged = [piece for piece in pieces if isinstance(piece, Chunk)]
        reach = max((piece.reach for piece in logged), default=0)
        newest = max(entry[5] for entry in ENTRY.iter_unpack(ring[RING:]))
        entries = whole_entries(raw_entries(ring, reach, max(newest, reach)), reach)
        if len(entries) != max(newest - reach, 0):
            return
        older = max(len(entries) - _DETAIL, 0)
        first = not any(piece.kind == FRAMES for piece in logged)
        frames = fold.fold(entries[:older], open_begins(ring), first) + fold.plain(entries[older:])
        for account, t0, background in _open_table(ring):
            kind = BACKGROUND if background else SPAN
            frames += fold.span_frame(kind, account, t0, max(t0, ended_ns))
        lane = {"attempt": int(facts["attempt"]), "rank": int(facts["rank"])}
        with path.open("ab") as file:
            file.write(chunk(FRAMES, frames, **lane, reach=max(newest, reach)))
        os.unlink(live_path)
    except (OSError, ValueError, KeyError, struct.error):
        return


def _claim(folder: Path, rank: int) -> tuple[Path, int]:
    """A log of our own: the first name that no other process has taken."""
    for writer in range(1000):
        path = log_path(folder, rank, writer)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            return path, os.open(path, flags, 0o644)
        except FileExistsError:
            continue
    raise OSError(errno.EEXIST, f"1000 records of rank {rank} exist already", str(folder))


def _mapped(path: Path) -> mmap.mmap:
    """A live file whose every block exists: a store to it cannot fail for want of disk."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(fd, 0, LIVE_BYTES)
        ring = mmap.mmap(fd, LIVE_BYTES)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)
    BLOCK.pack_into(ring, 0, BLOCK_MAGIC, 1, SLOTS, os.getpid(), 0)
    return ring


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
