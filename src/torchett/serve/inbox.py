"""Shipped bytes on disk: appended at their offset, acknowledged after fdatasync, never rewritten.

    FLEET/runs/PROJECT/JOB/.shipped                marks a folder that came from elsewhere
    FLEET/runs/PROJECT/JOB/attempt-0/rank-0.ett    exactly the bytes that the job's host has

One process writes to it. Names are taken from a list of forms (ship.files), so none is a path.
"""

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torchett.runs.reader import SHIPPED
from torchett.ship.files import is_job, kind_of
from torchett.ship.protocol import Piece

_FULL = (errno.ENOSPC, errno.EDQUOT)
_KNOWN_JOBS = 4096
_SYNCS = 16  # files that are made durable at a time


class InboxError(Exception):
    """Why a batch was refused: an HTTP status and one line."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one project may put on a server's disk."""

    file_bytes: int = 128 << 20  # a record is at most half of it
    replaced_bytes: int = 4 << 20
    files_per_job: int = 200_000
    jobs_per_project: int = 1_000_000
    reserve_bytes: int = 256 << 20  # of the disk, that stays free


class Inbox:
    """The run folders of one fleet that were shipped to it."""

    def __init__(self, runs: Path, limits: Limits | None = None) -> None:
        self.runs = runs
        self.limits = limits or Limits()
        self.syncing = ThreadPoolExecutor(_SYNCS, "ett-sync")
        self._busy: set[tuple[Path, str]] = set()  # files that a batch has open
        self._freed = threading.Condition()
        self._counts: OrderedDict[Path, int] = OrderedDict()  # files of a job
        self._counting = threading.Lock()

    def sizes(self, project: str, job: str) -> dict[str, int]:
        """Bytes of each file that is here of a job."""
        folder = self._folder(project, job)
        found: dict[str, int] = {}
        for name, path in _files(folder):
            if kind_of(name) is not None:
                found[name] = path.stat().st_size
        return found

    def take(self, project: str, job: str, pieces: Iterable[Piece]) -> dict[str, int]:
        """Put these pieces on disk; bytes of each of their files that are there now, for good."""
        folder = self._folder(project, job)
        self._expect_room(self.runs)
        if not (folder / SHIPPED).exists():
            self._make(folder)
        pieces = list(pieces)
        with self._alone({(folder, piece.name) for piece in pieces}):
            batch = _Batch(self, folder)
            try:
                for piece in pieces:
                    batch.put(piece)
                batch.sync()
            except OSError as error:
                if error.errno in _FULL:
                    raise InboxError(507, "the server's disk is full") from None
                raise InboxError(500, f"not written: {error.strerror}") from None
            finally:
                batch.close()
        return batch.sizes

    @contextmanager
    def _alone(self, files: set[tuple[Path, str]]) -> Iterator[None]:
        """Wait until no other batch has any of these files."""
        with self._freed:
            self._freed.wait_for(lambda: not (files & self._busy))
            self._busy |= files
        try:
            yield
        finally:
            with self._freed:
                self._busy -= files
                self._freed.notify_all()

    def count_new(self, folder: Path) -> None:
        """A file is added to a job; InboxError where it has too many."""
        with self._counting:
            count = self._counts.get(folder)
            if count is None:
                count = sum(1 for _ in _files(folder))
            if count >= self.limits.files_per_job:
                raise InboxError(413, f"more than {self.limits.files_per_job} files in a job")
            self._counts[folder] = count + 1
            self._counts.move_to_end(folder)
            while len(self._counts) > _KNOWN_JOBS:
                self._counts.popitem(last=False)

    def _folder(self, project: str, job: str) -> Path:
        if not is_job(project) or not is_job(job):
            raise InboxError(400, "a job or project of no plain name")
        return self.runs / project / job

    def _make(self, folder: Path) -> None:
        project = folder.parent
        with self._counting:
            jobs = sum(1 for _ in os.scandir(project)) if project.is_dir() else 0
        if jobs >= self.limits.jobs_per_project:
            raise InboxError(413, f"more than {self.limits.jobs_per_project} jobs in a project")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / SHIPPED).touch()
        except OSError as error:
            status = 507 if error.errno in _FULL else 500
            raise InboxError(status, f"not written: {error.strerror}") from None

    def _expect_room(self, path: Path) -> None:
        while not path.exists():
            path = path.parent
        free = os.statvfs(path)
        if free.f_bavail * free.f_frsize < self.limits.reserve_bytes:
            raise InboxError(507, "the server's disk is full")


class _Batch:
    """The files that one batch touches, open until they are synced."""

    def __init__(self, inbox: Inbox, folder: Path) -> None:
        self._inbox, self._folder = inbox, folder
        self._open: dict[str, int] = {}
        self._dirty: set[str] = set()
        self._new_in: set[Path] = set()
        self.sizes: dict[str, int] = {}

    def put(self, piece: Piece) -> None:
        if piece.replaces:
            self._replace(piece)
        else:
            self._append(piece)

    def sync(self) -> None:
        # At once: a disk makes many durable in about the time of one.
        for _ in self._inbox.syncing.map(os.fdatasync, [self._open[name] for name in self._dirty]):
            pass
        for folder in self._new_in:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def _append(self, piece: Piece) -> None:
        """Compare what is there, add what is new."""
        fd = self._fd(piece.name)
        size = os.fstat(fd).st_size
        self.sizes[piece.name] = size
        self._dirty.add(piece.name)  # what a killed server had written is not known to be on disk
        if piece.offset > size:
            return
        end = piece.offset + len(piece.data)
        if end > self._inbox.limits.file_bytes:
            raise InboxError(413, f"more than {self._inbox.limits.file_bytes} bytes in a file")
        there = min(size, end) - piece.offset
        if there and os.pread(fd, there, piece.offset) != piece.data[:there]:
            raise InboxError(409, "other bytes are there: a job of this name is another run")
        data, at = memoryview(piece.data)[there:], size
        while data:
            written = os.pwrite(fd, data, at)
            data, at = data[written:], at + written
        self.sizes[piece.name] = at

    def _replace(self, piece: Piece) -> None:
        """A small file that is not worth a sync: the next one replaces it within seconds."""
        if len(piece.data) > self._inbox.limits.replaced_bytes:
            raise InboxError(413, "too large")
        path = self._folder / piece.name
        self.sizes[piece.name] = len(piece.data)
        if not piece.data:
            path.unlink(missing_ok=True)
            return
        if not path.exists():
            self._inbox.count_new(self._folder)
            path.parent.mkdir(exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(piece.data)
        os.replace(part, path)

    def _fd(self, name: str) -> int:
        fd = self._open.get(name)
        if fd is not None:
            return fd
        path = self._folder / name
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            self._inbox.count_new(self._folder)
            if path.parent != self._folder and not path.parent.exists():
                path.parent.mkdir(exist_ok=True)
                self._new_in.add(self._folder)
            fd = os.open(path, flags | os.O_CREAT, 0o644)
            self._new_in.add(path.parent)
        self._open[name] = fd
        return fd


def _files(folder: Path) -> Iterable[tuple[str, Path]]:
    """The files of a run folder: name as it is shipped, and path."""
    try:
        top = list(os.scandir(folder))
    except OSError:
        return
    for entry in top:
        if entry.is_dir(follow_symlinks=False):
            for name in os.listdir(entry.path):
                yield f"{entry.name}/{name}", Path(entry.path) / name
        else:
            yield entry.name, Path(entry.path)
