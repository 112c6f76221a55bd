"""Reading ahead: the newest checkpoint is read and summed while the model is still being built.

Where memory holds a newer step, nothing is read. What was read from a folder stays in the kernel's
cache; what came from an object store is kept here, up to a bound, until it is loaded.
"""

import io
import logging
import mmap
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torchett.levers.checkpoint.stored.catalog import Entry, entries, verify
from torchett.levers.checkpoint.stored.checksum import CHUNK
from torchett.levers.checkpoint.stored.manifest import FileSum
from torchett.levers.checkpoint.stored.storage import Folder, Storage

log = logging.getLogger("torchett")


def share(files: Mapping[str, FileSum], rank: int, size: int) -> list[str]:
    """The files that a rank verifies: all ranks together verify all, of about the same size."""
    biggest_first = sorted(files, key=lambda name: (-files[name].size, name))
    loads = [0] * size
    mine = []
    for name in biggest_first:
        least = loads.index(min(loads))
        loads[least] += files[name].size + 1
        if least == rank:
            mine.append(name)
    return mine


class Prefetch:
    """Verifies this rank's share of the newest checkpoint, on a thread begun at once."""

    def __init__(
        self,
        tiers: Sequence[Storage],
        rank: int,
        size: int,
        *,
        newer: Callable[[], int] = lambda: -1,
        memory: int = 4 << 30,
    ) -> None:
        self._tiers, self._rank, self._size = tiers, rank, size
        self._newer = newer
        self._room = memory
        self._found: dict[tuple[str, str, str], list[str]] = {}
        self._kept: dict[tuple[str, str, str], bytearray] = {}
        self._thread = threading.Thread(target=self._work, name="ett-prefetch", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            newest: Entry | None = None
            for storage in self._tiers:
                for entry in entries(storage)[:1]:
                    if newest is None or entry.order > newest.order:
                        newest = entry
            if newest is None or newest.manifest is None or newest.step <= self._newer():
                return
            for name in share(newest.manifest.files, self._rank, self._size):
                self._found[_key(newest, name)] = self._read(newest, name)
        except Exception as error:  # restoring reads it again, and says what is wrong
            log.debug("torchett: nothing read ahead: %s", error)

    def _read(self, entry: Entry, name: str) -> list[str]:
        assert entry.manifest is not None
        told = entry.manifest.files[name]
        if isinstance(entry.storage, Folder) or told.size > self._room:
            return verify(entry, [name])
        parts, crc = [], 0
        with entry.storage.read(f"{entry.name}/{name}") as stream:
            while data := stream.read(CHUNK):
                crc = zlib.crc32(data, crc)
                parts.append(data)
        data = bytearray().join(parts)
        if FileSum(size=len(data), crc32=crc) != told:
            return verify(entry, [name])
        self._room -= len(data)
        self._kept[_key(entry, name)] = data
        return []

    def verified(self, entry: Entry, files: Iterable[str]) -> list[str]:
        """What is wrong with these files; those that were read ahead are not read again."""
        self._thread.join()
        problems = []
        for name in files:
            known = self._found.pop(_key(entry, name), None)
            problems += verify(entry, [name]) if known is None else known
        return problems

    @contextmanager
    def open(self, entry: Entry, name: str) -> Any:
        """A stream from a file of a checkpoint, out of memory where it was kept."""
        kept = self._kept.get(_key(entry, name))
        if kept is not None:
            yield io.BytesIO(kept)
        else:
            with entry.storage.read(f"{entry.name}/{name}") as stream:
                yield stream

    def memory(self, entry: Entry, name: str) -> mmap.mmap | bytearray | None:
        """A file of a checkpoint in memory: mapped from a folder, or as it was kept."""
        kept = self._kept.get(_key(entry, name))
        if kept is not None or not isinstance(entry.storage, Folder):
            return kept
        with entry.storage.read(f"{entry.name}/{name}") as stream:
            # Private, so that torch may take it for writable; nobody writes.
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)

    def clear(self) -> None:
        """Forget what was read."""
        self._kept.clear()
        self._found.clear()


def _key(entry: Entry, name: str) -> tuple[str, str, str]:
    return (entry.storage.root, entry.name, name)
