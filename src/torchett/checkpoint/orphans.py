"""An upload whose trainer has died is finished, and the next attempt waits for it.

    trainer        step ─ copied ─ ✗ killed
    uploader                ├── writes ─┼─ goes on ── commits ┤
    next attempt                          ├─ starts ──────────┄┤ restores that checkpoint

What was copied is not lost with the process it was copied from. Only what will be done in no time:
a restart that waited would lose more than it wins. A lock on a file beside the checkpoints says
that one is at work, and its name on which step; where the file system has no locks, an upload ends
with its trainer.
"""

import fcntl
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from torchett.checkpoint.storage import Folder, Storage, open_storage

_SOON_S = 2.0  # what is left to be done, by what the upload before took
_PATIENCE_S = 4.0
_NAME = ".orphan-"


class Hand:
    """What an uploader has in hand, and when it took it."""

    def __init__(self) -> None:
        self._empty = threading.Event()
        self._empty.set()
        self._where, self._step, self._since_s = "", 0, 0.0
        self._usual_s: float | None = None

    def take(self, where: str, step: int) -> None:
        """An upload begins, to this storage."""
        self._where, self._step, self._since_s = where, step, time.monotonic()
        self._empty.clear()

    def is_done(self, seconds: float | None) -> None:
        """It is over, and took so long; None if it failed."""
        self._usual_s = seconds
        self._empty.set()

    def finish(self) -> None:
        """The trainer is dead: return when nothing is in hand, or it is not worth waiting for."""
        if self._empty.is_set() or self._usual_s is None:
            return
        storage = open_storage(self._where)
        left_s = self._since_s + self._usual_s - time.monotonic()
        if left_s > _SOON_S or not isinstance(storage, Folder):
            return
        path = storage.path / f".claim-{os.getpid()}"
        try:
            with path.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path = path.rename(storage.path / f"{_NAME}{os.getpid()}-{self._step}")
                self._empty.wait(_PATIENCE_S)
        except OSError:
            pass  # no locks here, or no room
        path.unlink(missing_ok=True)


def at_work(storage: Storage) -> list[Path]:
    """The marks of uploads whose trainers have died; one that nobody holds is taken away."""
    marks = storage.path.glob(f"{_NAME}*") if isinstance(storage, Folder) else ()
    return [path for path in marks if not _is_over(path)]


def step_of(mark: Path) -> int:
    """The step that is uploaded."""
    return int(mark.name.rpartition("-")[2])


def wait_for(marks: Sequence[Path]) -> None:
    """Return when these uploads are over, or have had time enough."""
    until = time.monotonic() + _PATIENCE_S
    for path in marks:
        while time.monotonic() < until and not _is_over(path):
            time.sleep(0.01)
        path.unlink(missing_ok=True)


def _is_over(mark: Path) -> bool:
    """Whether nobody holds it; then it is taken away."""
    try:
        with mark.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        mark.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    except OSError:
        pass  # it is gone
    return True
