"""The tensors of a checkpoint one after the other, read piece by piece: in bounded memory.

    with stored_tensors("checkpoints/run-7", keys="model") as found:
        for tensor in found:                              # name, shape, dtype; nothing is read yet
            for offsets, piece in tensor.pieces(64 << 20):
                …

It needs no ranks, no process group and no model. A file is verified before its first piece is used.
"""

import math
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torchett.levers.checkpoint.errors import CorruptCheckpoint
from torchett.levers.checkpoint.state import saved_tensor
from torchett.levers.checkpoint.state.contents import Contents
from torchett.levers.checkpoint.stored.reading import found_at, name_matches
from torchett.levers.checkpoint.stored.storage import Folder

PIECE = 64 << 20

Piece = tuple[tuple[int, ...], Any]  # where it begins in the whole tensor, and its values


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor that lies in a checkpoint."""

    name: str
    path: tuple[Any, ...]  # its keys in the state: ("model", "0.weight")
    shape: tuple[int, ...]
    dtype: Any
    _open: "_Open"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype.itemsize)

    def pieces(self, most_bytes: int = PIECE) -> Iterator[Piece]:
        """Parts that together are the tensor, each of about `most_bytes` at most.

        They are views: copy what is to outlive the next piece. In a folder parts larger than that
        are cut along their first dimension; of an object store a part is what one rank wrote.
        """
        for chunk, part in self._open.parts(self.name):
            rows = part.shape[0] if part.dim() else 0
            row_bytes = part.nbytes // rows if rows else 0
            step = max(1, most_bytes // row_bytes) if row_bytes else 1
            if not rows or step >= rows:
                yield chunk, part
                continue
            for at in range(0, rows, step):
                yield (chunk[0] + at, *chunk[1:]), part[at : at + step]

    def read(self) -> Any:
        """The whole tensor."""
        import torch

        whole = torch.empty(self.shape, dtype=self.dtype)
        for offsets, piece in self.pieces():
            target = whole
            for dim, start in enumerate(offsets):
                target = target.narrow(dim, start, piece.shape[dim])
            target.copy_(piece)
        return whole


@contextmanager
def stored_tensors(
    where: "str | os.PathLike[str]", keys: str | Iterable[str] | None = None
) -> Iterator[list[StoredTensor]]:
    """The tensors of a checkpoint (of a folder's newest good one) that `keys` name, or all.

    `keys` are as in `Checkpointer.load`. Values that are no tensors are left out.
    """
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    wanted = [keys] if isinstance(keys, str) else None if keys is None else list(keys)
    opened = _newest_good(where)
    try:
        found = []
        for name in opened.contents.names():
            told = opened.contents.told(name)
            named = wanted is None or any(name_matches(name, key) for key in wanted)
            if named and isinstance(told, TensorStorageMetadata):
                found.append(
                    StoredTensor(
                        name=name,
                        path=opened.contents.path(name),
                        shape=tuple(told.size),
                        dtype=told.properties.dtype,
                        _open=opened,
                    )
                )
        yield found
    finally:
        opened.close()


def _newest_good(where: "str | os.PathLike[str]") -> "_Open":
    problems = []
    for entry in found_at(where):
        if entry.manifest is None:
            problems.append(f"{entry.path}: {entry.problem}")
            continue
        try:
            return _Open(Contents(entry, at_once=False))
        except CorruptCheckpoint as error:
            problems.append(str(error))
    raise CorruptCheckpoint(f"{os.fspath(where)} has no good checkpoint: {' | '.join(problems)}")


class _Open:
    """A checkpoint being read; of a folder, one file at a time is mapped."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self._mapped: tuple[str, mmap.mmap] | None = None

    def parts(self, name: str) -> Iterator[Piece]:
        """What each rank wrote of a tensor."""
        for offsets, at in self.contents.places(name):
            part = self._view(at)
            yield offsets, self.contents.part(at) if part is None else part

    def _view(self, at: Any) -> Any:
        """The part where it lies in the file; None if it has to be read."""
        storage = self.contents.entry.storage
        if not isinstance(storage, Folder):
            return None
        if self._mapped is None or self._mapped[0] != at.relative_path:
            self.contents.verify(at.relative_path)
            self.close()
            with storage.read(f"{self.contents.entry.name}/{at.relative_path}") as stream:
                memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
            self._mapped = at.relative_path, memory
        return saved_tensor.view(self._mapped[1], at.offset, at.length)

    def close(self) -> None:
        if self._mapped is not None:
            try:
                self._mapped[1].close()
            except BufferError:
                pass  # a piece still looks at it: it goes with the piece
            self._mapped = None
