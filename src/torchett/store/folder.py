"""A store that is a folder."""

import os
import stat
import uuid
from contextlib import AbstractContextManager
from pathlib import Path

from torchett.store.atomic import write_whole
from torchett.store.lease import lease
from torchett.store.open_store import StoreError, checked

_CHUNK = 8 << 20


class FolderStore:
    """Files in a folder. The first write makes a missing folder, with access for this user only."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = root.as_uri()

    def read(self, name: str, *, limit: int) -> bytes:
        path = self.root / checked(name)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise StoreError(f"{path}: {size} bytes, expected at most {limit}")
            return file.read()

    def write(self, name: str, data: bytes) -> None:
        path = self.root / checked(name)
        self._make_for(path)
        write_whole(path, data, mode=self._mode())

    def create(self, name: str, data: bytes) -> bool:
        path = self.root / checked(name)
        self._make_for(path)
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        write_whole(draft, data, mode=self._mode())
        try:
            os.link(draft, path)  # atomic, and fails if the file exists
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True

    def size(self, name: str) -> int | None:
        try:
            return (self.root / checked(name)).stat().st_size
        except FileNotFoundError:
            return None

    def write_file(self, name: str, path: Path) -> None:
        target = self.root / checked(name)
        self._make_for(target)
        with open(path, "rb") as file:
            write_whole(target, iter(lambda: file.read(_CHUNK), b""), mode=self._mode())

    def read_file(self, name: str, path: Path) -> None:
        with open(self.root / checked(name), "rb") as file:
            write_whole(path, iter(lambda: file.read(_CHUNK), b""), durable=False)

    def names(self, under: str = "") -> list[str]:
        top = self.root / checked(under) if under else self.root
        found = []
        for folder, folders, files in os.walk(top):
            folders[:] = [name for name in folders if not name.startswith(".")]
            base = Path(folder).relative_to(self.root)
            found += [(base / name).as_posix() for name in files if not name.startswith(".")]
        return sorted(found)

    def delete(self, name: str) -> None:
        (self.root / checked(name)).unlink(missing_ok=True)

    def lease(self, name: str, *, timeout_s: float) -> AbstractContextManager[None]:
        self._make()
        path = self.root / f".{checked(name).replace('/', '.')}.lease"
        return lease(path, timeout_s=timeout_s, mode=self._mode())

    def private(self) -> bool:
        """Whether only this user can write to the folder. One that is missing will be private."""
        try:
            found = self.root.stat()
        except FileNotFoundError:
            return True
        return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

    def _mode(self) -> int:
        """The mode of new files: others may read and write them as they may the folder."""
        return 0o600 | (0o066 & stat.S_IMODE(self.root.stat().st_mode))

    def _make_for(self, path: Path) -> None:
        """Make the folder of a file, with the mode of the root."""
        self._make()
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.chmod(stat.S_IMODE(self.root.stat().st_mode))

    def _make(self) -> None:
        if not self.root.exists():
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        elif not self.root.is_dir():
            raise StoreError(f"{self.root}: expected a folder, found a file")
