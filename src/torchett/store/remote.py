"""A store behind a URL that fsspec knows: s3, gs, abfs, memory and so on."""

import json
import os
import posixpath
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torchett.store.lease import BusyError
from torchett.store.places import StoreError, checked

_LEASE_S = 120.0  # after this a holder that never came back is taken for dead


class FsspecStore:
    """Objects in a bucket. An object appears whole: that is what object stores promise."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ModuleNotFoundError:
            raise StoreError(
                f"'{url}' needs fsspec: pip install 'torchett[store]', or give a path"
            ) from None
        self.url = url.rstrip("/")
        self._fs: Any
        try:
            # Listings that another process has outdated would hide what it published.
            self._fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise StoreError(f"'{url}' cannot be opened: {error}") from None
        self._root = root.rstrip("/")

    def read(self, name: str, *, limit: int) -> bytes:
        path = self._path(name)
        size = int(self._fs.size(path) or 0)
        if size > limit:
            raise StoreError(f"{self.url}/{name}: {size} bytes, expected at most {limit}")
        return bytes(self._fs.cat_file(path))

    def write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        self._fs.makedirs(posixpath.dirname(path), exist_ok=True)
        self._fs.pipe_file(path, data)

    def names(self, under: str = "") -> list[str]:
        top = self._path(under) if under else self._root
        try:
            found = self._fs.find(top)
        except FileNotFoundError:
            return []
        stem = self._root.lstrip("/") + "/"
        names = (path.lstrip("/").removeprefix(stem) for path in found)
        return sorted(name for name in names if not posixpath.basename(name).startswith("lease-"))

    def delete(self, name: str) -> None:
        try:
            self._fs.rm_file(self._path(name))
        except FileNotFoundError:
            pass

    def lease(self, name: str, *, timeout_s: float) -> AbstractContextManager[None]:
        return self._leased(f"{checked(name)}/lease-writer", timeout_s)

    def private(self) -> bool:
        return self._fs.protocol in ("memory", ("memory",))

    def _path(self, name: str) -> str:
        return f"{self._root}/{checked(name)}"

    @contextmanager
    def _leased(self, name: str, timeout_s: float) -> Iterator[None]:
        """A small object that says who writes. Object stores have no locks, so two writers may
        in rare cases both believe they hold it; then the later one wins, whole.
        """
        me = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        until = time.monotonic() + timeout_s
        while True:
            holder = self._holder(name)
            if holder is None:
                self.write(name, json.dumps({"by": me, "until": time.time() + _LEASE_S}).encode())
                holder = self._holder(name)
            if holder == me:
                break
            if time.monotonic() >= until:
                raise BusyError(f"{self.url}/{name}: held by {holder}")
            time.sleep(0.2)
        try:
            yield
        finally:
            if self._holder(name) == me:
                self.delete(name)

    def _holder(self, name: str) -> str | None:
        try:
            found = json.loads(self.read(name, limit=4096))
            return str(found["by"]) if found["until"] > time.time() else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
