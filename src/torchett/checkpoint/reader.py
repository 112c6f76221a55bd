"""DCP's reader, on any storage, out of what was read ahead."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader

from torchett.checkpoint.catalog import Entry
from torchett.checkpoint.prefetch import Prefetch


class VerifiedReader(FileSystemReader):  # type: ignore[misc]
    """Reads a checkpoint that was verified."""

    def __init__(self, entry: Entry, prefetch: Prefetch) -> None:
        super().__init__("/")
        self.path = entry.name
        self.fs = _Files(entry, prefetch)


class _Files:
    """What FileSystemReader asks of a file system."""

    def __init__(self, entry: Entry, prefetch: Prefetch) -> None:
        self._entry, self._prefetch = entry, prefetch

    def concat_path(self, path: str, suffix: str) -> str:
        return suffix

    @contextmanager
    def create_stream(self, path: str, mode: str) -> Iterator[Any]:
        with self._prefetch.open(self._entry, path) as stream:
            yield stream

    def exists(self, path: str) -> bool:
        return self._entry.storage.exists(f"{self._entry.name}/{path}")
