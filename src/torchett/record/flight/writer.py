"""The writer of a flight record: entries into the ring, folded ones of it into the log.

    training thread   s s s s s s s s s s s s s s s s s s        stores into the ring, nothing else
    ett-beat          beat ── fold ── beat ── beat ── fold       chunks for the log, in memory
    ett-writer             └─► write             └─► write       the only one that waits for a disk

Where the disk hangs, chunks wait in memory. What does not fit there is dropped and counted, and
its time is unattributed.
"""

import _thread
import json
import logging
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from operator import index as to_int
from pathlib import Path
from typing import Any

from torchett.model.accounts import INDEX, NAMES
from torchett.record.clock import now_ns
from torchett.record.flight import fold
from torchett.record.flight.format import (
    BEAT_AT,
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
    attempt_folder,
    chunk,
    header_line,
    log_path,
)
from torchett.record.flight.log_writer import LogWriter
from torchett.record.flight.ring import RingFile, open_begins, raw_entries, whole_entries

log = logging.getLogger("torchett")

_WRAP = SLOTS - 1
_FOLD_AT = 447  # entries not folded that are worth a fold
_NEWEST = 192  # of them, how many stay: what comes later may lie across them
_CROWDED = SLOTS * 3 // 4  # entries not folded: above it the training thread folds
_SETTLED_S = 15.0  # entries this old are folded however few: readers of other hosts see the log
_BEAT_S = 1.0
DETAIL = 64  # entries a finished record keeps one by one
_WAITING_BYTES = 1 << 20  # held back while the disk is full, before anything is dropped
_MOST_BYTES = 64 << 20  # of a log: a record does not grow without bound
_PATIENCE_S = 2.0  # at exit, for a disk that hangs
_IS_FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()


def _one_at_a_time(put: Callable[..., None]) -> Callable[..., None]:
    """The same method under the writer's lock: without a GIL, threads come in at any time."""

    def locked(self: "FlightWriter", *entry: int) -> None:
        with self._lock:
            put(self, *entry)

    return locked


class FlightWriter:
    """One rank's record, being written. Nothing here raises once it is open.

    `_lock` is held while entries are folded or a chunk is put in line, never while anything waits
    for a disk.
    """

    def __init__(
        self, run: Path, *, attempt: int, restart: int, rank: int, facts: dict[str, Any]
    ) -> None:
        """Make the ring, or raise OSError. The log is opened by `begin`."""
        self._lane = {"attempt": attempt, "rank": rank}
        self._ring_file = RingFile(run, attempt=attempt, restart=restart, rank=rank)
        self.ring_path = self._ring_file.path
        header = header_line({**facts, "ring": str(self.ring_path), "accounts": NAMES})
        self._ring_file.say(header)
        self._ring_file.say(b'{"run": %s}\n' % json.dumps(os.path.abspath(run)).encode())
        self._log = LogWriter(attempt_folder(run, attempt, restart), rank, header)
        self._take(self._ring_file.memory)
        self._seq = 0  # of the next entry
        self._look_at = _FOLD_AT
        self._lock = threading.RLock()
        self.turn = [0, 0]  # when the loop's present turn began: its wait, its step
        self.opened: dict[int, int] = {}  # steps that are not over: whose, and when they began
        self._reach = 0  # entries below this one are folded
        self._folded_ns = 0  # nothing that is folded lasts longer
        self._folding = False
        self._begun = False  # the first step is folded
        self._dropped = 0
        self._hole: tuple[int, int] | None = None  # the time of entries dropped since the last
        self._accounts = len(NAMES)
        self._free = list(range(OPEN_SLOTS))
        self._closed = False
        self._threaded = False
        # A raw lock, held while there is nothing to fold: releasing it is safe in signal handlers.
        self._crowd = _thread.allocate_lock()
        self._crowd.acquire()
        self.wake: Callable[[], None] = self._wake_beat_thread

    def begin(self, timeout_s: float) -> None:
        """Start the threads that beat, fold and write; OSError if the log cannot be opened.

        A file system that does not answer in that time is left to the threads: the log is opened
        when it does, and until then chunks wait.
        """
        self._threaded = True
        for work, name in ((self._beat_and_fold, "ett-beat"), (self._log.run, "ett-writer")):
            threading.Thread(target=work, name=name, daemon=True).start()
        self._log.wait_until_open(timeout_s)
        if self._log.error is not None:
            self._give_up()
            raise self._log.error

    def open_here(self) -> None:
        """Open the log without any thread: the caller of `put` also folds and writes."""
        self._log.open()
        self.wake = self._fold_and_write

    @property
    def path(self) -> Path:
        """The log."""
        return self._log.path

    @property
    def is_first(self) -> bool:
        """Whether no process was this rank in this attempt before."""
        return self.path == log_path(self.path.parent, self._lane["rank"])

    def abandon(self) -> None:
        """In a forked child: the record is the parent's, and nothing is to be written to it."""
        self._closed = True
        self._lock = threading.RLock()
        self.wake = lambda: None
        self._ring_file.let_go()
        self._log.abandon()
        self._take(bytearray(LIVE_BYTES))

    def _give_up(self) -> None:
        """The log cannot be opened: stop recording."""
        self._closed = True
        self._ring_file.remove()

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

    # What other threads do ---------------------------------------------------------------------

    def beat(self) -> None:
        """A sign of life, for the agent that watches from outside."""
        self.ring[BEAT_AT : BEAT_AT + 8] = now_ns().to_bytes(8, "little")
        self.ring[STEPPED_AT] = self.has_step()

    def _beat_and_fold(self) -> None:
        """Beat once a second and fold when the ring has filled, until the record is closed."""
        settled_at, settled = time.monotonic() + _SETTLED_S, 0
        while not self._closed:
            now = time.monotonic()
            self.beat()
            if self._log.error is not None:
                log.warning("torchett: this process is not recorded: %s", self._log.error)
                self._give_up()
                return
            if now >= settled_at:
                self.fold(settled)
                settled_at, settled = now + _SETTLED_S, self._seq
            while self._crowd.acquire(timeout=max(0.0, now + _BEAT_S - time.monotonic())):
                self.fold()

    def _wake_beat_thread(self) -> None:
        try:
            self._crowd.release()
        except RuntimeError:
            pass  # it is already awake

    def _fold_and_write(self) -> None:
        self.fold()
        self._log.flush()

    # Entries -----------------------------------------------------------------------------------

    def put(self, waited: int, begin: int, end: int, index: int, what: int) -> None:
        """Store an entry; raises only for an index that is no int.

        The hot path: six stores to shared memory. No lock is needed, because nothing is called
        between the first line that counts and the last: only at a call does the interpreter let
        another thread in, or a signal handler that records a span. Now and then the thread that
        folds is woken, after this entry is stored.
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
            self._crowded()

    if _IS_FREE_THREADED:
        put = _one_at_a_time(put)

    def _crowded(self) -> None:
        """There is something to fold: wake the thread that does.

        Where it does not keep up, the training thread folds: microseconds, and no disk.
        """
        self._look_at = self._seq + _FOLD_AT - _NEWEST
        self.wake()
        if self._seq - self._reach > _CROWDED and not self._closed:
            self.fold()

    def fold(self, settled: int = 0) -> None:
        """Fold all but the newest entries, if there are enough, and those below `settled`."""
        if not self._lock.acquire(timeout=0.1):
            return  # another thread is at it
        try:
            if self._folding or self._closed:
                return  # a signal handler's entry, in the middle of a fold
            self._folding = True
            seq, reach = self._seq, self._reach
            upto = max(settled, seq - _NEWEST if seq - reach >= _FOLD_AT else 0)
            try:
                if upto > reach:
                    self._fold(upto, seq)
            except Exception as error:  # never into the loop: what was not folded is dropped
                self._drop(upto - reach)
                self._widen_hole(self._folded_ns or now_ns(), now_ns())
                log.warning("torchett: entries of the flight record were lost: %r", error)
            self._folding = False
            self._look_at = self._reach + _FOLD_AT
        finally:
            self._lock.release()

    def name_account(self, name: str) -> int:
        """The number of a user's own account. Its name is written before its first use."""
        with self._lock:
            number, self._accounts = self._accounts, self._accounts + 1
            fact = {"account": number, "name": name}
            if not self._closed:
                self._ring_file.say(json.dumps(fact).encode() + b"\n")
            self.note(fact)
        return number

    def note(self, fact: dict[str, Any]) -> None:
        """Keep a fact that is neither span nor step: it goes to the log."""
        with self._lock:
            if not self._closed:
                self._queue(chunk(NOTE, json.dumps(fact).encode(), **self._lane, reach=0), 0)
        if not self._threaded:
            self._log.flush()

    def close(self, fact: dict[str, Any]) -> None:
        """Fold what is left (the newest entries stay as they are) and let the ring go.

        The one place that waits for the disk, and not for long. What is not written then stays in
        the ring, where the launcher or a reader finds it.
        """
        if not self._lock.acquire(timeout=1.0):
            return
        try:
            if self._closed:
                return
            seq = self._seq
            self._fold(max(seq - DETAIL, self._reach), seq)
            self._fold(seq, seq, detail=True)
            self._queue_hole()
            self.note(fact)
        except Exception:
            return  # the ring stays, and a reader finds the rest there
        finally:
            self._closed = True
            self._lock.release()
        self._wake_beat_thread()
        if self._log.finish(_PATIENCE_S, self._threaded):
            self._ring_file.remove()
        else:
            self._ring_file.say(json.dumps(fact).encode() + b"\n")

    def _fold(self, upto: int, seq: int, detail: bool = False) -> None:
        """Fold entries up to `upto`; those from there to `seq` are only looked at."""
        begin = min(max(self._reach, seq - SLOTS), upto)  # what lies before is overwritten
        raw = raw_entries(self.ring, begin, upto)
        ahead = raw_entries(self.ring, max(upto, seq - SLOTS), max(upto, seq))
        missing = begin - self._reach
        self._reach = upto
        still_open = [t for t in (*open_begins(self.ring), *self.turn) if t]
        still_open += list(self.opened.values())
        frames = None
        if self._begun and not detail:
            frames = fold.fold_uniform(raw, begin, ahead, still_open, self._folded_ns)
        first_ns = ENTRY.unpack_from(raw)[0] if raw else 0
        behind = self._folded_ns
        if frames is not None:
            self._folded_ns = ENTRY.unpack_from(raw, len(raw) - ENTRY.size)[2]
        else:
            entries = whole_entries(raw, begin)
            missing += upto - begin - len(entries)
            first_ns = min((entry[0] for entry in entries), default=0)
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
            self._widen_hole(behind or first_ns, first_ns or behind)
        if frames:
            data = chunk(FRAMES, frames, **self._lane, reach=upto)
            self._queue(data, upto - begin, frames)

    def _queue(self, data: bytes, entries: int, frames: bytes = b"") -> None:
        """Queue a chunk; if the queue is full, drop it and count its time."""
        writer = self._log
        over = writer.waiting_bytes > _WAITING_BYTES or writer.written_bytes > _MOST_BYTES
        if over and entries:
            times = [t for frame in FRAME.iter_unpack(frames) for t in (frame[4], frame[5])]
            self._widen_hole(min(times), max(times))
            self._drop(entries)
            return
        if entries:
            self._queue_hole()
        writer.put(data)

    def _widen_hole(self, t0: int, t1: int) -> None:
        """Count the time of missing entries."""
        hole = self._hole or (t0, t1)
        self._hole = min(t0, *hole), max(t1, *hole)

    def _queue_hole(self) -> None:
        """Record how many entries are missing, and their time: it is unattributed."""
        if self._hole is not None:
            lost = fold.span_frame(SPAN, INDEX["unattributed"], *self._hole)
            self._hole = None
            said = json.dumps({"dropped": self._dropped}).encode()
            self._log.put(chunk(NOTE, said, **self._lane, reach=0))
            self._log.put(chunk(FRAMES, lost, **self._lane, reach=0))

    def _drop(self, entries: int) -> None:
        self._dropped += entries
        self.ring[DROPPED_AT : DROPPED_AT + 8] = self._dropped.to_bytes(8, "little")
