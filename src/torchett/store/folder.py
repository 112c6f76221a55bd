"""A store that is a folder."""

import os
import stat
from contextlib import AbstractContextManager
from pathlib import Path

from torchett.store.lease import lease
from torchett.store.places import StoreError, checked
from torchett.store.whole import write_whole


class FolderStore:
    """Files in a folder; one that is not there is made with the first write, for us alone."""

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
        self._make()
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.chmod(stat.S_IMODE(self.root.stat().st_mode))
        write_whole(path, data, mode=self._mode())

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
        """Ours, and not writable by the group or by others; one not made yet will be."""
        try:
            found = self.root.stat()
        except FileNotFoundError:
            return True
        return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

    def _mode(self) -> int:
        """Files are as open to others as the folder is: in a private one they are private."""
        return 0o600 | (0o066 & stat.S_IMODE(self.root.stat().st_mode))

    def _make(self) -> None:
        if not self.root.exists():
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        elif not self.root.is_dir():
            raise StoreError(f"{self.root}: expected a folder, found a file")
