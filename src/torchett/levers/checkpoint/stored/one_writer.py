"""One job writes to a place. Others may restore from it, but delete and save nothing there.

    folder          .writer is locked by rank 0 of the job that saves, until its process ends
    object store    writer.json is renewed every half minute by the job that saves

A lock of a node that died may stay on a network file system: `.writer` is renewed as well, and one
that was not for five minutes counts for nothing.
"""

import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from torchett.levers.checkpoint.stored.storage import Folder, Storage

log = logging.getLogger("torchett")

_RENEW_S = 30.0
_DEAD_S = 300.0
_ASK_S = 0.1
_LOCK, _NOTE = ".writer", "writer.json"


class OneWriter(Protocol):
    """The claim of a job to be the one that writes."""

    def take(self, patience_s: float = 0.0) -> str | None:
        """None once this process is the writer, or who is instead."""

    def is_shared(self) -> bool:
        """Whether another checkpointer of this process writes there, too."""

    def release(self) -> None: ...


def one_writer(storage: Storage) -> OneWriter:
    return FolderLock(storage.path) if isinstance(storage, Folder) else StoreNote(storage)


# Locks of fcntl are a process's: not of its children, and all gone when it closes any descriptor of
# the file. So each file is open once, however many checkpointers there are.
_open: dict[Path, tuple[int, int, int]] = {}  # path → (pid, descriptor, how many)


class FolderLock:
    """A lock on a file beside the checkpoints."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _LOCK
        self._held = False
        self._renewed: _Renewed | None = None

    def take(self, patience_s: float = 0.0) -> str | None:
        until = time.monotonic() + patience_s
        while not self._held:
            other = self._try()
            if other is None or time.monotonic() > until:
                return other
            time.sleep(_ASK_S)
        return None

    def _try(self) -> str | None:
        pid, descriptor, count = _open.get(self._path, (0, -1, 0))
        if pid != os.getpid():
            count = 0
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                log.debug("torchett: %s cannot be opened: %s", self._path, error)
                return None  # saving will say what is wrong with the folder
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                other = self._other(descriptor)
                os.close(descriptor)
                return other
            except OSError as error:  # no locks on this file system
                log.debug("torchett: %s cannot be locked: %s", self._path, error)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _me().encode(), 0)
            self._renewed = _Renewed(lambda: os.utime(descriptor))
        _open[self._path] = (os.getpid(), descriptor, count + 1)
        self._held = True
        return None

    def _other(self, descriptor: int) -> str | None:
        """Who holds it; None if that process has not renewed it for long."""
        age_s = time.time() - os.fstat(descriptor).st_mtime
        other = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
        if age_s > _DEAD_S:
            log.warning("torchett: %s is locked by %s, which is gone", self._path, other)
            return None
        return other

    def is_shared(self) -> bool:
        return _open.get(self._path, (0, -1, 0))[2] > 1

    def release(self) -> None:
        pid, descriptor, count = _open.get(self._path, (0, -1, 0))
        if not self._held or pid != os.getpid():
            return
        self._held = False
        if count > 1:
            _open[self._path] = (pid, descriptor, count - 1)
            return
        del _open[self._path]
        if self._renewed is not None:
            self._renewed.stop.set()
        os.close(descriptor)


class StoreNote:
    """A note that is renewed: object stores have no locks, so two that begin at once both win."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._renewed: _Renewed | None = None
        self._first = self._read()  # as it was before this job's model was built

    def take(self, patience_s: float = 0.0) -> str | None:
        if self._renewed is not None:
            return None
        found = self._read()
        if found is not None and self._is_alive(found):
            return str(found.get("writer", "another process"))
        self._write()
        self._renewed = _Renewed(self._write)
        return None

    def _is_alive(self, found: dict[str, Any]) -> bool:
        """Whether its job still renews it, as far as that can be told."""
        host, _, pid = str(found.get("writer", "")).rpartition(" process ")
        if host == socket.gethostname() and pid.isdigit():
            return int(pid) != os.getpid() and Path(f"/proc/{pid}").exists()
        renewed = self._first is not None and found != self._first
        return renewed or time.time() - float(found.get("time", 0)) < 3 * _RENEW_S

    def _read(self) -> dict[str, Any] | None:
        try:
            with self._storage.read(_NOTE) as stream:
                said = json.loads(stream.read())
            return said if isinstance(said, dict) and said.get("writer") else None
        except Exception as error:
            log.debug("torchett: no %s: %s", _NOTE, error)
            return None

    def _write(self) -> None:
        said = json.dumps({"writer": _me(), "time": time.time()}).encode()
        self._storage.replace(_NOTE, said)

    def is_shared(self) -> bool:
        return False

    def release(self) -> None:
        if self._renewed is None:
            return
        self._renewed.stop.set()
        self._renewed = None
        try:
            self._storage.replace(_NOTE, b"{}")
        except Exception as error:
            log.debug("torchett: %s stays: %s", _NOTE, error)


def _me() -> str:
    return f"{socket.gethostname()} process {os.getpid()}"


class _Renewed:
    """A thread that renews a claim until it is told to stop."""

    def __init__(self, renew: Callable[[], None]) -> None:
        self.stop = threading.Event()
        self._renew = renew
        threading.Thread(target=self._work, name="ett-writer", daemon=True).start()

    def _work(self) -> None:
        while not self.stop.wait(_RENEW_S):
            try:
                self._renew()
            except Exception as error:
                log.debug("torchett: a claim was not renewed: %s", error)
