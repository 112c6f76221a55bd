"""The writer of a flight record: entries into the ring, folded halves of it into the log."""

import errno
import json
import logging
import mmap
import os
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from operator import index as to_int
from pathlib import Path
from typing import Any

from torchett.model.accounts import INDEX, NAMES
from torchett.record import fold
from torchett.record.clock import Anchor, now_ns
from torchett.record.layout import (
    ACCOUNT_SHIFT,
    BACKGROUND,
    BEAT_AT,
    BLOCK,
    BLOCK_MAGIC,
    DROPPED_AT,
    ENTRY,
    FRAME,
    FRAMES,
    LIVE_BYTES,
    NOTE,
    OPEN,
    OPEN_AT,
    OPEN_SLOTS,
    RING,
    SLOTS,
    SPAN,
    STEP,
    STEPPED_AT,
    Chunk,
    Damage,
    attempt_folder,
    chunk,
    chunks,
    header_line,
    log_path,
    read_header,
)

log = logging.getLogger("torchett")

Ring = mmap.mmap | bytearray | bytes

_WRAP = SLOTS - 1
_FOLD_AT = SLOTS - 65  # entries not folded: a little early, there is room for what comes meanwhile
_NEWEST = SLOTS - 320  # of them, how many stay
_DETAIL = 64  # entries a finished record keeps one by one
_WAITING_BYTES = 1 << 20  # held back while the disk is full, before anything is dropped
_MOST_BYTES = 64 << 20  # of a log: a record does not grow without bound
_IS_FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()


class FlightWriter:
    """One rank's record, being written. Nothing here raises once it is open.

    Folding is done under a lock and takes microseconds; writing is done by whoever comes first
    while the others go on, and what a slow or full disk does not take yet waits in memory.
    """

    def __init__(
        self, run: Path, *, attempt: int, restart: int, rank: int, facts: dict[str, Any]
    ) -> None:
        """Open the record, or raise OSError where it cannot be made."""
        self._lane = {"attempt": attempt, "rank": rank}
        folder = attempt_folder(run, attempt, restart)
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._log = _claim(folder, rank)
        try:
            _write_all(self._log, header_line({**facts, "accounts": NAMES}))
            self.live_path = self.path.with_suffix(".live")
            self._take(_mapped(self.live_path))
        except OSError:
            os.close(self._log)
            raise
        self._seq = 0  # of the next entry
        self._look_at = _FOLD_AT
        self._lock = threading.RLock()
        self.turn = [0, 0]  # when the loop's present turn began: its wait, its step
        self._reach = 0  # entries below this one are folded,
        self._written = 0  # and those below this one written
        self._folded_ns = 0  # nothing that is folded lasts longer
        self._begun = False  # the first step is folded
        self._writing = threading.Lock()
        self._waiting: deque[tuple[bytes, int]] = deque()  # chunks to write, and their reach
        self._waiting_bytes = self._written_bytes = 0
        self._dropped = 0
        self._hole: tuple[int, int] | None = None  # the time of entries dropped since the last
        self._accounts = len(NAMES)
        self._free = list(range(OPEN_SLOTS))
        self._closed = False
        if _IS_FREE_THREADED:
            vars(self)["put"] = _one_by_one(self._lock, self.put)

    @property
    def is_first(self) -> bool:
        """Whether no process was this rank in this attempt before."""
        return self.path == log_path(self.path.parent, self._lane["rank"])

    def abandon(self) -> None:
        """In a forked child: the record is the parent's, and nothing is to be written to it."""
        self._closed = True
        self._lock, self._writing = threading.RLock(), threading.Lock()
        self._take(bytearray(LIVE_BYTES))

    def _take(self, ring: mmap.mmap | bytearray) -> None:
        self.ring = ring
        words = memoryview(ring).cast("q")[RING // 8 :]
        self._columns = tuple(words[k :: ENTRY.size // 8] for k in range(ENTRY.size // 8))

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

    def has_step(self) -> bool:
        """Whether a step has been recorded: a look at the ring, for rare use."""
        with self._lock:
            if self._begun:
                return True
            raw = raw_entries(self.ring, self._reach, self._seq)
            return any(entry[4] & 0xFF == STEP for entry in whole_entries(raw, self._reach))

    def last_step_ns(self) -> int:
        """When the last recorded step ended, as far as the ring reaches back; for rare use."""
        with self._lock:
            raw = raw_entries(self.ring, self._reach, self._seq)
            entries = whole_entries(raw, self._reach)
            return max((e[2] for e in entries if e[4] & 0xFF == STEP), default=self._folded_ns)

    def beat(self) -> None:
        """A sign of life, for whoever watches from outside."""
        self.ring[BEAT_AT : BEAT_AT + 8] = now_ns().to_bytes(8, "little")
        self.ring[STEPPED_AT] = self.has_step()

    # The log ---------------------------------------------------------------------------------

    def put(self, waited: int, begin: int, end: int, index: int, what: int) -> None:
        """Store an entry; raises only for an index that is no int.

        The hot path: six stores to shared memory. No lock is needed, because nothing is called
        between the first line that counts and the last: only at a call does the interpreter let
        another thread in, or a signal handler that records a span. Now and then the older entries
        are folded, after this one is stored.
        """
        if index.__class__ is not int:
            index = to_int(index)
        seq = self._seq
        self._seq = after = seq + 1
        slot = seq & _WRAP
        waits, begins, ends, indices, metas, seqs = self._columns
        try:
            waits[slot] = waited
            begins[slot] = begin
            ends[slot] = end
            indices[slot] = index
            metas[slot] = what
            seqs[slot] = after
        except ValueError:
            self._seq = seq
            raise
        if seq >= self._look_at:
            self._make_room()

    def _make_room(self) -> None:
        """Fold all but the newest entries of the ring, if it is time to, and write."""
        with self._lock:
            seq, entries = self._seq, self._seq - _NEWEST - self._reach
            if seq > self._reach + _FOLD_AT:
                try:
                    self._fold(self._reach + entries, seq)
                except Exception as error:  # never into the loop: what was not folded is dropped
                    self._drop(entries)
                    log.warning("torchett: entries of the flight record were lost: %r", error)
                self._look_again()
        self._flush()

    def _look_again(self) -> None:
        """Say at which entry there will be something to fold, or to write before it is too late.

        Entries that are folded but not written yet are overwritten only if the disk is so slow.
        """
        self._look_at = min(self._reach + _FOLD_AT, self._written + SLOTS - 32)

    def name_account(self, name: str) -> int:
        """A number for a user's own account, told to the reader before it is used."""
        with self._lock:
            number, self._accounts = self._accounts, self._accounts + 1
        self.note({"account": number, "name": name})
        return number

    def note(self, fact: dict[str, Any]) -> None:
        """Append a fact that is neither span nor step."""
        if not self._closed:
            self._queue(chunk(NOTE, json.dumps(fact).encode(), **self._lane, reach=0), 0)
            self._flush()

    def close(self, fact: dict[str, Any]) -> None:
        """Fold what is left (the newest entries stay as they are) and let the ring go."""
        if not self._lock.acquire(timeout=1.0):
            return
        try:
            if self._closed:
                return
            seq = self._seq
            self._fold(max(seq - _DETAIL, self._reach), seq)
            self._fold(seq, seq, detail=True)
            if self._dropped:
                self.note({"dropped": self._dropped})
            self.note(fact)
            self._closed = True
            with self._writing:  # nobody writes any more: the file is ours to close
                if not self._waiting:
                    os.unlink(self.live_path)
                os.close(self._log)
        except Exception:
            pass  # the ring stays on disk, and a reader finds the rest there
        finally:
            self._closed = True
            self._lock.release()

    def _fold(self, upto: int, seq: int, detail: bool = False) -> None:
        """Fold entries up to `upto`; those from there to `seq` are only looked at."""
        begin = max(self._reach, upto - SLOTS)
        raw = raw_entries(self.ring, begin, upto)
        ahead = raw_entries(self.ring, upto, max(upto, seq))
        missing = begin - self._reach
        self._reach = upto
        still_open = [t for t in (*open_begins(self.ring), *self.turn) if t]
        frames = None
        if self._begun and not detail:
            frames = fold.fold_uniform(raw, begin, ahead, still_open, self._folded_ns)
        if frames is not None:
            self._folded_ns = ENTRY.unpack_from(raw, len(raw) - ENTRY.size)[2]
        else:
            entries = whole_entries(raw, begin)
            missing += upto - begin - len(entries)
            first = not self._begun
            self._begun = self._begun or any(entry[4] & 0xFF == STEP for entry in entries)
            if detail:
                frames = fold.plain(entries)
            else:
                later = whole_entries(ahead, upto)
                frames = fold.fold(entries, later, still_open, first, self._folded_ns)
            self._folded_ns = max([self._folded_ns, *(entry[2] for entry in entries)])
        if missing:
            self._drop(missing)
        if frames:
            data = chunk(FRAMES, frames, **self._lane, reach=upto)
            self._queue(data, upto - begin, frames, upto)

    def _queue(self, data: bytes, entries: int, frames: bytes = b"", reach: int = 0) -> None:
        """Put a chunk in line to be written; one too many is dropped and its time remembered."""
        over = self._waiting_bytes > _WAITING_BYTES or self._written_bytes > _MOST_BYTES
        if over and entries:
            times = [t for frame in FRAME.iter_unpack(frames) for t in (frame[4], frame[5])]
            hole = self._hole or (times[0], times[0])
            self._hole = min(*times, *hole), max(*times, *hole)
            self._drop(entries)
            return
        if self._hole is not None and entries:
            lost = fold.span_frame(SPAN, INDEX["unattributed"], *self._hole)
            self._hole = None
            self._queue(chunk(FRAMES, lost, **self._lane, reach=0), 0)
        self._waiting.append((data, reach))
        self._waiting_bytes += len(data)

    def _flush(self) -> None:
        """Write what is in line, in order and never torn; somebody else's turn is left to them."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            while self._waiting and not self._closed:
                data, reach = self._waiting[0]
                size = os.write(self._log, data)
                self._written_bytes += size
                self._waiting_bytes -= size
                if size < len(data):
                    self._waiting[0] = data[size:], reach
                    continue
                self._waiting.popleft()
                self._written = max(self._written, reach)
                self._look_again()
        except OSError:
            pass  # a full disk: again at the next fold
        finally:
            self._writing.release()

    def _drop(self, entries: int) -> None:
        self._dropped += entries
        self.ring[DROPPED_AT : DROPPED_AT + 8] = self._dropped.to_bytes(8, "little")


def _one_by_one(lock: threading.RLock, put: Callable[..., None]) -> Callable[..., None]:
    """The same, where threads come in at any time."""

    def called(*entry: Any) -> None:
        with lock:
            put(*entry)

    return called


def raw_entries(ring: Ring, begin: int, end: int) -> bytes:
    """Entries begin…end (at most a ring of them) as they lie there, whole or not."""
    a, b = RING + begin % SLOTS * ENTRY.size, RING + end % SLOTS * ENTRY.size
    if begin == end:
        return b""
    return bytes(ring[a:b]) if a < b else bytes(ring[a:LIVE_BYTES]) + bytes(ring[RING:b])


def whole_entries(raw: bytes, begin: int) -> list[fold.Entry]:
    """Those of the raw entries that are what they should be: entry begin, begin + 1, …"""
    found = ENTRY.iter_unpack(raw)
    return [entry for seq, entry in enumerate(found, begin + 1) if entry[5] == seq]


def open_begins(ring: Ring) -> list[int]:
    """When the foreground spans that are not over began."""
    return [t0 for _, t0, background in _open_table(ring) if not background]


def _open_table(ring: Ring) -> list[tuple[int, int, int]]:
    """Spans that are not over: account, begin, background."""
    table = OPEN.iter_unpack(bytes(ring[OPEN_AT : OPEN_AT + OPEN_SLOTS * OPEN.size]))
    return [(account - 1, t0, background) for account, t0, background in table if account]


def seal(path: Path, ended: Anchor, ended_ns: int) -> None:
    """Fold what a dead rank left in its ring into its log, as if it had closed it.

    Spans that were open end at `ended_ns`, or where the next process that was this rank began, on
    the clock of `ended`: a rank of another host is not ours to bury. A ring that cannot be sealed
    is left as it is: readers take it from there.
    """
    live_path = path.with_suffix(".live")
    try:
        ring = live_path.read_bytes()
        data = path.read_bytes()
        magic, _, slots, _, dropped = BLOCK.unpack_from(ring)
        if magic != BLOCK_MAGIC or slots != SLOTS or len(ring) != LIVE_BYTES or dropped:
            return
        header, newline, _ = data.partition(b"\n")
        facts = read_header(header + newline)
        if Anchor.from_json(facts.get("anchor")).clock != ended.clock:
            return
        pieces = list(chunks(memoryview(data)[len(header) + 1 :]))
        if any(isinstance(piece, Damage) for piece in pieces):
            return
        logged = [piece for piece in pieces if isinstance(piece, Chunk)]
        reach = max((piece.reach for piece in logged), default=0)
        newest = max(entry[5] for entry in ENTRY.iter_unpack(ring[RING:]))
        entries = whole_entries(raw_entries(ring, reach, max(newest, reach)), reach)
        if len(entries) != max(newest - reach, 0):
            return
        older = max(len(entries) - _DETAIL, 0)
        frames_before = [
            frame
            for piece in logged
            if piece.kind == FRAMES
            for frame in FRAME.iter_unpack(piece.payload)
        ]
        first = not any(frame[0] == STEP for frame in frames_before)
        behind = max((frame[5] for frame in frames_before), default=0)
        frames = fold.fold(entries[:older], entries[older:], open_begins(ring), first, behind)
        frames += fold.plain(entries[older:])
        over = {(e[4] >> ACCOUNT_SHIFT & 0xFFFF, e[1]) for e in entries}
        ended_ns = min([ended_ns, *_later_begins(path, facts)])
        for account, t0, background in _open_table(ring):
            if (account, t0) in over:
                continue  # killed just after it had ended
            kind = BACKGROUND if background else SPAN
            frames += fold.span_frame(kind, account, t0, max(t0, ended_ns))
        lane = {"attempt": int(facts["attempt"]), "rank": int(facts["rank"])}
        if frames:
            with path.open("ab") as file:
                file.write(chunk(FRAMES, frames, **lane, reach=max(newest, reach)))
        os.unlink(live_path)
    except (OSError, ValueError, KeyError, ArithmeticError, struct.error):
        return


def _later_begins(path: Path, facts: dict[str, Any]) -> Iterator[int]:
    """When other processes began that were the same rank, on the same clock, after this one."""
    for other in path.parent.glob(f"rank-{facts['rank']}~*.ett"):
        with other.open("rb") as file:
            theirs = read_header(file.readline())
        same = theirs["anchor"]["clock"] == facts["anchor"]["clock"]
        if same and theirs["began_ns"] > facts["began_ns"]:
            yield theirs["began_ns"]


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
    """A live file whose every block exists: a store to it cannot fail for want of disk.

    It takes its name when it is whole, so that one which is not has been damaged.
    """
    made = path.with_suffix(".making")
    fd = os.open(made, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(fd, 0, LIVE_BYTES)
        ring = mmap.mmap(fd, LIVE_BYTES)
        BLOCK.pack_into(ring, 0, BLOCK_MAGIC, 1, SLOTS, os.getpid(), 0)
        os.rename(made, path)
    except OSError:
        os.unlink(made)
        raise
    finally:
        os.close(fd)
    return ring


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
