"""A lease on a file: held by one process at a time, and released when the process ends.

    process A   ├─ lease ───── work ─────┤
    process B        ├┄ waits ┄┄┄┄┄┄┄┄┄┄┄├─ lease ─ sees that the work is done ─┤

The kernel ties the lock to the open file, so it is released at once when the holder is killed. A
process forked meanwhile (a loader's worker) inherits the file descriptor. Closing ours is then not
enough: the lock is released explicitly.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class BusyError(Exception):
    """Another process held the lease until our timeout."""


@contextmanager
def lease(
    path: Path, *, timeout_s: float, poll_s: float = 0.02, mode: int = 0o600
) -> Iterator[None]:
    """Hold the lease of this file; `BusyError` after `timeout_s`.

    On a file system without locks (ENOLCK, ENOSYS) the body runs without one.
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
