"""A store at any URL that fsspec supports: s3, gs, abfs, memory and so on."""

import json
import os
import posixpath
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from torchett.store.lease import BusyError
from torchett.store.open_store import StoreError, checked

_LEASE_S = 120.0  # a lease expires this long after its last renewal
_SETTLE_S = 0.2  # wait before each of two checks: a concurrent write is visible by then


class FsspecStore:
    """Objects in a bucket. Object stores guarantee that an object appears whole."""

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
            # A cached listing would hide what another process has published since.
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

    def create(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        self._fs.makedirs(posixpath.dirname(path), exist_ok=True)
        try:
            self._fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except (TypeError, NotImplementedError, ValueError):  # no exclusive writes here
            with self.lease(f"{posixpath.dirname(name) or 'root'}", timeout_s=_LEASE_S):
                if self._fs.exists(path):
                    return False
                self._fs.pipe_file(path, data)
        return True

    def size(self, name: str) -> int | None:
        try:
            return int(self._fs.size(self._path(name)))
        except FileNotFoundError:
            return None

    def write_file(self, name: str, path: Path) -> None:
        target = self._path(name)
        self._fs.makedirs(posixpath.dirname(target), exist_ok=True)
        if self.private():  # put_file shows an empty object in memory before it has its bytes
            self._fs.pipe_file(target, path.read_bytes())
        else:
            self._fs.put_file(str(path), target)

    def read_file(self, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            self._fs.get_file(self._path(name), str(draft))
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

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
        """Hold a small object that names the writer, renewed for as long as the body runs.

        Object stores have no locks. The object is made by an exclusive write if the back end has
        one. The lease is ours if the object is unchanged in two later checks. Two writers can
        still hold it at once if their writes take longer than those checks, if their clocks differ
        by more than `_LEASE_S`, or if the holder cannot reach the store for that long. Then the
        later write wins, and it is whole.
        """
        me = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        until = time.monotonic() + timeout_s
        while not self._take(name, me):
            if time.monotonic() >= until:
                raise BusyError(f"{self.url}/{name}: held by {self._holder(name)}")
            time.sleep(0.2)
        over = threading.Event()
        renewing = threading.Thread(
            target=self._renew, args=(name, me, over), name="ett-lease", daemon=True
        )
        renewing.start()
        try:
            yield
        finally:
            over.set()
            renewing.join()
            if self._holder(name) == me:
                self.delete(name)

    def _take(self, name: str, me: str) -> bool:
        """Try to take the lease once; whether we have it."""
        if self._holder(name) is not None:
            return False
        self.delete(name)  # an expired one, if any
        try:
            self._write_lease(name, me, mode="create")
        except FileExistsError:
            return False
        except (TypeError, NotImplementedError, ValueError):  # no exclusive writes here
            self._write_lease(name, me)
        for _ in range(2):
            time.sleep(_SETTLE_S)
            if self._holder(name) != me:
                return False
        return True

    def _renew(self, name: str, me: str, over: threading.Event) -> None:
        """Renew the lease until `over` is set or another writer holds it."""
        while not over.wait(_LEASE_S / 4):
            try:
                if self._holder(name) not in (me, None):
                    return
                self._write_lease(name, me)
            except Exception:
                pass  # retried: the lease is valid for three more periods

    def _write_lease(self, name: str, me: str, **how: str) -> None:
        path = self._path(name)
        data = json.dumps({"by": me, "until": time.time() + _LEASE_S}).encode()
        self._fs.makedirs(posixpath.dirname(path), exist_ok=True)
        self._fs.pipe_file(path, data, **how)

    def _holder(self, name: str) -> str | None:
        try:
            found = json.loads(self.read(name, limit=4096))
            return str(found["by"]) if found["until"] > time.time() else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
