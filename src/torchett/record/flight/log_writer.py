"""The writer of a record's log: a thread of its own, because a disk may hang.

    any thread      put put put ┄┄┄┄┄┄┄┄┄┄┄┄ put          a chunk goes into a queue in memory
    ett-writer      open │ write │ write ▒▒▒▒ hangs ▒▒▒▒ write │ write

Chunks are written in order and never torn. A full disk is tried again at the next chunk, at the
latest after a second.
"""

import _thread
import errno
import os
import threading
from collections import deque
from pathlib import Path

from torchett.record.flight.format import log_path

_TRY_AGAIN_S = 1.0


class LogWriter:
    """Opens and writes one log. `run` is the thread's work; without a thread, `flush` is called."""

    def __init__(self, folder: Path, rank: int, header: bytes) -> None:
        self._folder, self._rank, self._header = folder, rank, header
        self.path = log_path(folder, rank)  # until it is open: the name it is likely to get
        self.error: OSError | None = None
        self.queued_bytes = self.written_bytes = 0
        self._chunks: deque[bytes] = deque()
        self._fd = -1
        self._more = _thread.allocate_lock()  # held: there is nothing to do. No Condition: a signal
        self._more.acquire()  # handler may put a chunk while its thread is inside `put`
        self._writing = _thread.allocate_lock()
        self._opened, self._finished = threading.Event(), threading.Event()
        self._ends = False

    def open(self) -> None:
        """Claim a log and write its first line, or raise OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path, fd = _claim(self._folder, self._rank)
        try:
            data = self._header
            while data:
                data = data[os.write(fd, data) :]
        except OSError:
            os.close(fd)
            raise
        self.path, self._fd = path, fd

    def run(self) -> None:
        """Open the log, then write chunks as they come, until `finish`."""
        try:
            self.open()
        except OSError as error:
            self.error = error
            self._opened.set()
            self._finished.set()
            return
        self._opened.set()
        while not self._ends:
            self._more.acquire(timeout=_TRY_AGAIN_S)
            self.flush()
        self._close()

    def wait_until_open(self, timeout_s: float) -> None:
        """Wait until the log is open or has failed to open, for at most that time."""
        self._opened.wait(timeout_s)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait in memory because the disk is full, slow, or hangs."""
        return self.queued_bytes - self.written_bytes

    def put(self, chunk: bytes) -> None:
        """Queue a chunk. The caller admits one thread at a time."""
        self._chunks.append(chunk)
        self.queued_bytes += len(chunk)
        self.wake()

    def wake(self) -> None:
        try:
            self._more.release()
        except RuntimeError:
            pass  # it is already awake

    def flush(self) -> None:
        """Write the queued chunks; return at once if another thread does."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            while self._chunks and self._fd >= 0:
                data = self._chunks[0]
                size = os.write(self._fd, data)
                self.written_bytes += size
                if size < len(data):
                    self._chunks[0] = data[size:]
                else:
                    self._chunks.popleft()
        except OSError:
            pass  # a full disk
        finally:
            self._writing.release()

    def finish(self, timeout_s: float, threaded: bool) -> bool:
        """Write what is left and close the log; whether all of it was written in that time."""
        self._ends = True
        if threaded:
            self.wake()
            if not self._finished.wait(timeout_s):
                return False
        else:
            self.flush()
            self._close()
        return not self._chunks and self.error is None

    def _close(self) -> None:
        self.flush()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        self._finished.set()

    def abandon(self) -> None:
        """In a forked child: the log is the parent's."""
        self._chunks.clear()
        self._fd = -1


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
