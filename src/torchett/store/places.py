"""Where things are kept, by URL.

    ./cache, /mnt/cache, file:///mnt/cache      a folder: the standard library is enough
    s3://…, gs://…, memory://…, …               anything fsspec knows: pip install torchett[store]

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
    """Named bytes, each of which is there whole or not at all."""

    url: str

    def read(self, name: str, *, limit: int) -> bytes:
        """The bytes of this name; FileNotFoundError without, StoreError above the limit."""

    def write(self, name: str, data: bytes) -> None:
        """Make these the bytes of this name, at once."""

    def names(self, under: str = "") -> list[str]:
        """Every name, or those below a folder, in order."""

    def delete(self, name: str) -> None:
        """Forget the name, if it is there."""

    def lease(self, name: str, *, timeout_s: float) -> AbstractContextManager[None]:
        """One writer at a time, as far as the store can tell them apart."""

    def private(self) -> bool:
        """Whether nobody but this user can write here."""


def open_store(url: str) -> Store:
    """The store that a URL or a path names; nothing is created yet."""
    scheme = urlsplit(url).scheme if "://" in url else ""
    if scheme in ("", "file"):
        from torchett.store.folder import FolderStore

        path = unquote(urlsplit(url).path) if scheme else url
        if not path or (scheme and urlsplit(url).netloc not in ("", "localhost")):
            raise StoreError(f"'{url}': expected a path or file:///PATH")
        return FolderStore(Path(path).expanduser().absolute())
    from torchett.store.remote import FsspecStore

    return FsspecStore(url)


def checked(name: str) -> str:
    """The name, if it is one that cannot lead out of the store."""
    if not _NAME.fullmatch(name):
        raise StoreError(f"{name!r}: expected a relative name in letters, digits and ._-")
    return name
