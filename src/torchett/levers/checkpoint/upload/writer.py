"""The writer: DCP's files, with every byte summed on its way and every item accounted for.

DCP's own writer publishes a checkpoint although a writing thread failed. Here a thread's error is
the save's, what was planned is compared with what was written, and the sums travel with the
results to rank 0, which commits (`commit.py`).
"""

import os
import pickle
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import (
    CURRENT_DCP_VERSION,
    DEFAULT_SUFFIX,
)
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult

from torchett.levers.checkpoint.errors import CheckpointError
from torchett.levers.checkpoint.stored.manifest import FileSum
from torchett.levers.checkpoint.stored.storage import Storage, write_all
from torchett.levers.checkpoint.torch_names import storage_place, storage_prefix

METADATA = ".metadata"
_PER_THREAD = 64 << 20
_ALIGN = 64


@dataclass(frozen=True)
class Written(WriteResult):  # type: ignore[misc]
    """What DCP wants to know of an item, and the sum of the file it went to."""

    file: str = ""
    sum: FileSum | None = None


class Summed:
    """A stream that sums what passes through it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.size = self.crc32 = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.crc32 = zlib.crc32(view, self.crc32)
        try:
            done = write_all(self._stream, view)
        except OSError as error:
            self.error = error
            raise
        self.size += done
        return done

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        pass

    def sum(self) -> FileSum:
        return FileSum(size=self.size, crc32=self.crc32)


Commit = Callable[[dict[str, FileSum], int], str]


class VerifiedWriter(StorageWriter):  # type: ignore[misc]
    """Writes one checkpoint to a fresh place and hands its sums to `commit` on rank 0."""

    def __init__(self, storage: Storage, place: str, commit: Commit) -> None:
        super().__init__()
        self._storage, self._place, self._commit = storage, place, commit
        self._planned = 0
        self.committed: str | None = None

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._storage.make(self._place)

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        from dataclasses import replace

        self._planned = sum(len(plan.items) for plan in plans)
        return [
            replace(plan, storage_data=storage_prefix(f"__{rank}_"))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: Any, planner: Any) -> Any:
        """A future, done already: the results of this rank's items."""
        buckets = _buckets(plan.items)
        names = [f"{plan.storage_data.prefix}{n}{DEFAULT_SUFFIX}" for n in range(len(buckets))]

        def write(name: str, items: Sequence[Any]) -> list[Written]:
            return self._write_file(name, items, planner)

        if len(buckets) <= 1:
            parts = [write(*pair) for pair in zip(names, buckets, strict=True)]
        else:
            with ThreadPoolExecutor(len(buckets), thread_name_prefix="ett-write") as pool:
                parts = list(pool.map(write, names, buckets))  # raises what a thread raised
        results = [result for part in parts for result in part]
        if {r.index for r in results} != {item.index for item in plan.items}:
            raise CheckpointError(f"{len(results)} of {len(plan.items)} items were written")
        self._storage.sync(self._place)
        future: Any = torch.futures.Future()
        future.set_result(results)
        return future

    def _write_file(self, name: str, items: Sequence[Any], planner: Any) -> list[Written]:
        placed = []
        with self._storage.write(f"{self._place}/{name}") as raw:
            stream = Summed(raw)
            for item in items:
                stream.write(bytes(-stream.tell() % _ALIGN))  # so that it can be viewed in place
                offset = stream.tell()
                data = planner.resolve_data(item)
                if item.type == WriteItemType.BYTE_IO:
                    stream.write(data.getbuffer())
                else:
                    self._save(data, stream)
                placed.append((item.index, storage_place(name, offset, stream.tell() - offset)))
        whole = stream.sum()
        return [
            Written(index=i, size_in_bytes=at.length, storage_data=at, file=name, sum=whole)
            for i, at in placed
        ]

    def _save(self, data: Any, stream: Summed) -> None:
        try:
            torch.save(data, stream)
        except Exception:
            if stream.error is not None:  # torch would say that its position is unexpected
                raise stream.error from None
            raise

    def finish(self, metadata: Any, results: list[list[Written]]) -> None:
        """On rank 0, with every rank's results: write DCP's metadata, then commit."""
        written = [result for part in results for result in part]
        indexes = {result.index for result in written}
        if len(written) != self._planned or len(indexes) != self._planned:
            raise CheckpointError(f"{len(indexes)} of {self._planned} planned items were written")
        metadata.version = CURRENT_DCP_VERSION
        metadata.storage_data = {result.index: result.storage_data for result in written}
        metadata.storage_meta = self.storage_meta()
        sums = {result.file: result.sum for result in written if result.sum is not None}
        with self._storage.write(f"{self._place}/{METADATA}") as raw:
            stream = Summed(raw)
            stream.write(pickle.dumps(metadata))
        sums[METADATA] = stream.sum()
        self.committed = self._commit(sums, self._planned)

    def storage_meta(self) -> Any:
        return StorageMeta(checkpoint_id=f"{self._storage.root}/{self._place}")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


def _buckets(items: Sequence[Any]) -> list[list[Any]]:
    """The items in a few lists of about the same size, one for each thread and file."""
    sizes = [_size(item) for item in items]
    count = max(1, min(4, (os.cpu_count() or 1) // 2, sum(sizes) // _PER_THREAD))
    buckets: list[list[Any]] = [[] for _ in range(count)]
    filled = [0] * count
    for size, item in sorted(zip(sizes, items, strict=True), key=lambda p: p[0], reverse=True):
        least = filled.index(min(filled))
        buckets[least].append(item)
        filled[least] += size
    return [bucket for bucket in buckets if bucket]


def _size(item: Any) -> int:
    if item.tensor_data is None:
        return 0
    count = 1
    for length in item.tensor_data.chunk.sizes:
        count *= length
    return int(count * item.tensor_data.properties.dtype.itemsize)
