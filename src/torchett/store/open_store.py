"""The interface of a store, and how to open one by URL.

    ./cache, /mnt/cache, file:///mnt/cache      a folder: the standard library is enough
    s3://…, gs://…, memory://…, …               what fsspec supports: pip install torchett[store]

Names inside a store are relative, with forward slashes, in letters, digits and `._-`.
"""

import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}(/[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}){0,7}")


class StoreError(Exception):
    """A store cannot be opened, read or written: one line that says why."""


class Store(Protocol):
    """Named blobs of bytes. Each is whole or absent."""

    url: str

    def read(self, name: str, *, limit: int) -> bytes:
        """The bytes of this name; FileNotFoundError if absent, StoreError above the limit."""

    def write(self, name: str, data: bytes) -> None:
        """Set the bytes of this name, atomically."""

    def names(self, under: str = "") -> list[str]:
        """All names, or those below a folder, sorted."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a name that does not exist yet; False, and no change, if it exists."""

    def size(self, name: str) -> int | None:
        """The size of this name in bytes; None if it is absent."""

    def write_file(self, name: str, path: Path) -> None:
        """Write the content of a local file under this name, in bounded memory."""

    def read_file(self, name: str, path: Path) -> None:
        """Write the bytes of this name to a local file, in bounded memory."""

    def delete(self, name: str) -> None:
        """Delete the name if it exists."""

    def lease(self, name: str, *, timeout_s: float) -> AbstractContextManager[None]:
        """Admit one writer at a time, as far as the store can guarantee it."""

    def private(self) -> bool:
        """Whether only this user can write here."""


def open_store(url: str) -> Store:
    """The store at a URL or a path; nothing is created yet."""
    scheme = urlsplit(url).scheme if "://" in url else ""
    if scheme in ("", "file"):
        from torchett.store.folder import FolderStore

        path = unquote(urlsplit(url).path) if scheme else url
        if not path or (scheme and urlsplit(url).netloc not in ("", "localhost")):
            raise StoreError(f"'{url}': expected a path or file:///PATH")
        return FolderStore(Path(path).expanduser().absolute())
    from torchett.store.fsspec_store import FsspecStore

    return FsspecStore(url)


def checked(name: str) -> str:
    """The name, if it cannot point outside the store; else StoreError."""
    if not _NAME.fullmatch(name):
        raise StoreError(f"{name!r}: expected a relative name in letters, digits and ._-")
    return name
