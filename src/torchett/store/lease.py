"""A lease: one process at a time, and no longer than it lives.

    process A   ├─ lease ───── work ─────┤
    process B        ├┄ waits ┄┄┄┄┄┄┄┄┄┄┄├─ lease ─ sees that the work is done ─┤

The kernel holds the lock for an open file, so a holder that is killed gives it back at once. A
process that is forked meanwhile (a loader's worker) has the file open, too: closing it is not
enough to give the lease back.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class BusyError(Exception):
    """Another process held the lease for longer than we were ready to wait."""


@contextmanager
def lease(
    path: Path, *, timeout_s: float, poll_s: float = 0.02, mode: int = 0o600
) -> Iterator[None]:
    """Hold the lease that this file stands for; `BusyError` if it cannot be had in time.

    Where the file system knows no locks (ENOLCK, ENOSYS), the body runs without one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        _lock(opened, path, time.monotonic() + timeout_s, poll_s)
        try:
            yield
        finally:
            _unlock(opened)
    finally:
        os.close(opened)


def _lock(opened: int, path: Path, until: float, poll_s: float) -> None:
    while True:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                return
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                raise
        if time.monotonic() >= until:
            raise BusyError(f"{path}: held by another process")
        time.sleep(poll_s)


def _unlock(opened: int) -> None:
    try:
        fcntl.flock(opened, fcntl.LOCK_UN)
    except OSError:
        pass  # there was no lock
