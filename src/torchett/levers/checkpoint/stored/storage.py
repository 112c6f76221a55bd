"""Where checkpoints lie: a folder or an object store.

A rename commits in a folder; in an object store the manifest does, because it is written last.

    folder          step-00000039/  step-00000059.tmp-5f3a/  step-00000019.corrupt-81c2/  latest
    object store    step-00000039-5f3a/  step-00000059-81c2/ (no manifest: not one yet)   latest

Paths below a storage's root are written with `/`.
"""

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from torchett.levers.checkpoint.errors import CheckpointError
from torchett.levers.checkpoint.stored import manifest

_NAME = re.compile(r"step-(\d{8,})(?:\.(\d+)|-([0-9a-f]+))?")
_AT_ONCE = 64 << 20
_passed = [0]  # a race between threads loses a count, not a byte
_LEFTOVER = re.compile(r"step-\d{8,}.*\.(tmp|trash)-[0-9a-f]+")


def token() -> str:
    """A few letters that no other save has."""
    return uuid.uuid4().hex[:8]


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def order(name: str) -> tuple[int, int] | None:
    """(step, generation) of a checkpoint's folder; None if the name is not one's."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2] or 0)) if found else None


def write_all(stream: IO[bytes], data: Any) -> int:
    """The bytes written: all of `data`, or OSError. An unbuffered file may take only a part."""
    view = memoryview(data).cast("B")
    done = 0
    while done < len(view):
        took = stream.write(view[done : done + _AT_ONCE])
        if not took:
            raise OSError(f"{done} of {len(view)} bytes were written")
        done += took
        _passed[0] += took
    return done


def bytes_passed() -> int:
    """Bytes that this process has written so far: whether an upload moves."""
    return _passed[0]


class Storage(Protocol):
    """What committing and restoring need of a place."""

    root: str

    def names(self) -> list[str]:
        """Folders under the root, checkpoints or not."""

    def place(self, step: int, token: str) -> str:
        """The folder in which the checkpoint of `step` is written."""

    def make(self, name: str) -> None:
        """Make the folder."""

    def write(self, path: str) -> Any:
        """A context with a stream to a file that is durable when the context is left."""

    def read(self, path: str) -> Any:
        """A context with a stream from a file."""

    def contents(self, path: str) -> bytes:
        """A small file that is not empty, by one request; FileNotFoundError without one."""

    def size(self, path: str) -> int:
        """Bytes of a file; FileNotFoundError without one."""

    def exists(self, path: str) -> bool: ...

    def sizes(self, name: str) -> dict[str, int]:
        """File → bytes, of all files in a folder, by one listing."""

    def publish(self, name: str, step: int) -> str:
        """The name under which a written folder is a checkpoint from now on."""

    def replace(self, path: str, data: bytes) -> None:
        """Put `data` there as a whole or not at all."""

    def sync(self, name: str) -> None:
        """Make the names in a folder durable ("" is the root)."""

    def delete(self, name: str) -> None:
        """Take a folder away; half-deleted it is not a checkpoint."""

    def quarantine(self, name: str) -> str:
        """The new name of a folder that is not to be loaded and not to be lost."""

    def sweep(self) -> list[str]:
        """Names of what earlier, killed writers left, now deleted."""


def open_storage(where: "str | os.PathLike[str]") -> Storage:
    """The storage at a path or an fsspec address such as s3://bucket/job."""
    text = os.fspath(where)
    if "://" in text and not text.startswith("file://"):
        return ObjectStore(text)
    return Folder(Path(text.removeprefix("file://")))


def named_storage(where: "str | os.PathLike[str]") -> Storage:
    """The storage that a user named, there or not yet; refused where a file is in its place."""
    storage = open_storage(where)
    if isinstance(storage, Folder):
        path = storage.path
        there = next(one for one in (path, *path.parents) if os.path.exists(one))
        if not os.path.isdir(there):
            raise CheckpointError(f"{there}: expected a folder for checkpoints, found a file")
    return storage


class Folder:
    """A folder of a file system with rename and fsync."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.root = str(self.path)

    def names(self) -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self.path) if entry.is_dir()]
        except FileNotFoundError:
            return []

    def place(self, step: int, token: str) -> str:
        return f"{step_name(step)}.tmp-{token}"

    def make(self, name: str) -> None:
        (self.path / name).mkdir(parents=True, exist_ok=True)

    @contextmanager
    def write(self, path: str) -> Iterator[IO[bytes]]:
        with open(self.path / path, "wb", buffering=0) as stream:
            yield stream
            os.fsync(stream.fileno())

    @contextmanager
    def read(self, path: str) -> Iterator[IO[bytes]]:
        with open(self.path / path, "rb") as stream:
            yield stream

    def contents(self, path: str) -> bytes:
        return (self.path / path).read_bytes()

    def size(self, path: str) -> int:
        return (self.path / path).stat().st_size

    def exists(self, path: str) -> bool:
        return (self.path / path).exists()

    def sizes(self, name: str) -> dict[str, int]:
        try:
            with os.scandir(self.path / name) as found:
                return {entry.name: entry.stat().st_size for entry in found if entry.is_file()}
        except FileNotFoundError:
            return {}

    def publish(self, name: str, step: int) -> str:
        for generation in range(1000):
            final = step_name(step) + (f".{generation}" if generation else "")
            if not (self.path / final).exists():
                os.rename(self.path / name, self.path / final)
                return final
        raise CheckpointError(f"{self.path} has 1000 checkpoints of step {step}: delete some")

    def replace(self, path: str, data: bytes) -> None:
        draft = self.path / f"{path}.tmp-{token()}"
        try:
            with open(draft, "wb", buffering=0) as stream:
                write_all(stream, data)
                os.fsync(stream.fileno())
            os.replace(draft, self.path / path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def sync(self, name: str) -> None:
        descriptor = os.open(self.path / name if name else self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def delete(self, name: str) -> None:
        doomed = self.path / (name if _LEFTOVER.fullmatch(name) else f"{name}.trash-{token()}")
        if doomed.name != name:
            os.rename(self.path / name, doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def quarantine(self, name: str) -> str:
        aside = f"{name}.corrupt-{token()}"
        os.rename(self.path / name, self.path / aside)
        return aside

    def sweep(self) -> list[str]:
        left = [name for name in self.names() if _LEFTOVER.fullmatch(name)]
        for name in left:
            self.delete(name)
        try:
            for entry in os.scandir(self.path):
                if entry.is_file() and ".tmp-" in entry.name:
                    os.unlink(entry.path)
        except FileNotFoundError:
            pass
        return left


class ObjectStore:
    """Anything fsspec reaches: no rename, no fsync; an object is there whole or not at all."""

    def __init__(self, address: str) -> None:
        try:
            import fsspec  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            raise CheckpointError(
                f"{address} needs fsspec: pip install 'torchett[store]'"
            ) from None
        self.root = address
        try:
            self._fs, self._path = fsspec.core.url_to_fs(address)
        except (ImportError, ValueError) as error:
            raise CheckpointError(f"{address} cannot be opened: {error}") from None
        self._path = self._path.rstrip("/")

    def names(self) -> list[str]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._path, detail=True)
        except FileNotFoundError:
            return []
        return [f["name"].rstrip("/").rsplit("/", 1)[-1] for f in found if f["type"] == "directory"]

    def place(self, step: int, token: str) -> str:
        return f"{step_name(step)}-{token}"

    def make(self, name: str) -> None:
        self._fs.makedirs(f"{self._path}/{name}", exist_ok=True)

    @contextmanager
    def write(self, path: str) -> Iterator[IO[bytes]]:
        stream = self._fs.open(f"{self._path}/{path}", "wb")
        try:
            yield stream
        except BaseException:
            getattr(stream, "discard", lambda: None)()
            raise
        stream.close()

    @contextmanager
    def read(self, path: str) -> Iterator[IO[bytes]]:
        with self._fs.open(f"{self._path}/{path}", "rb") as stream:
            yield stream

    def contents(self, path: str) -> bytes:
        # With a start, s3fs does not ask for the size first.
        return bytes(self._fs.cat_file(f"{self._path}/{path}", start=0))

    def size(self, path: str) -> int:
        return int(self._fs.size(f"{self._path}/{path}"))

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(f"{self._path}/{path}"))

    def sizes(self, name: str) -> dict[str, int]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(f"{self._path}/{name}", detail=True)
        except FileNotFoundError:
            return {}
        return {f["name"].rsplit("/", 1)[-1]: int(f["size"]) for f in found if f["type"] == "file"}

    def publish(self, name: str, step: int) -> str:
        return name

    def replace(self, path: str, data: bytes) -> None:
        self._fs.pipe_file(f"{self._path}/{path}", data)

    def sync(self, name: str) -> None:
        pass

    def delete(self, name: str) -> None:
        try:
            self._fs.rm_file(f"{self._path}/{name}/{manifest.NAME}")
        except FileNotFoundError:
            pass
        self._fs.rm(f"{self._path}/{name}", recursive=True)

    def quarantine(self, name: str) -> str:
        folder = f"{self._path}/{name}"
        self._fs.mv(f"{folder}/{manifest.NAME}", f"{folder}/{manifest.NAME}.corrupt")
        return f"{name} (its {manifest.NAME} is renamed)"

    def sweep(self) -> list[str]:
        left = []
        for name in self.names():
            kept = {manifest.NAME, f"{manifest.NAME}.corrupt"}
            if order(name) is not None and not kept & self.sizes(name).keys():
                self.delete(name)
                left.append(name)
        return left
