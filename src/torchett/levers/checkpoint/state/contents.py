"""What a checkpoint holds, name by name, without a model to load it into."""

import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchett.levers.checkpoint.errors import CorruptCheckpoint
from torchett.levers.checkpoint.stored.catalog import Entry, verify
from torchett.levers.checkpoint.upload.writer import METADATA


class Contents:
    """The values of one checkpoint; it is verified first, because reading it unpickles.

    `at_once` all files are verified, otherwise each when something of it is read.
    """

    def __init__(self, entry: Entry, *, at_once: bool = True) -> None:
        self.entry = entry
        self._verified: set[str] = set()
        assert entry.manifest is not None, entry.problem
        self.verify(*(entry.manifest.files if at_once else (METADATA,)))
        with entry.storage.read(f"{entry.name}/{METADATA}") as stream:
            self._metadata = pickle.loads(stream.read())

    def names(self) -> list[str]:
        return list(self._metadata.state_dict_metadata)

    def path(self, name: str) -> tuple[Any, ...]:
        """The keys under which a value lay in the state."""
        path: tuple[Any, ...] = self._metadata.planner_data[name]
        return path

    def verify(self, *files: str) -> None:
        """Read files and compare their sums, once each; CorruptCheckpoint if one differs."""
        new = [file for file in files if file not in self._verified]
        problems = verify(self.entry, new)
        if problems:
            raise CorruptCheckpoint(f"{self.entry.path} is corrupt: {'; '.join(problems)}")
        self._verified.update(new)

    def value(self, name: str) -> Any:
        """The whole tensor, whichever ranks wrote its parts, or the object."""
        import torch
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

        told = self.told(name)
        if not isinstance(told, TensorStorageMetadata):
            at = self._metadata.storage_data[MetadataIndex(name)]
            return torch.load(self._bytes(at), weights_only=False)
        whole = torch.empty(told.size, dtype=told.properties.dtype)
        for offsets, at in self.places(name):
            part = self.part(at)
            target = whole
            for dim, start in enumerate(offsets):
                target = target.narrow(dim, start, part.shape[dim])
            target.copy_(part)
        return whole

    def told(self, name: str) -> Any:
        """What DCP's metadata says of a name."""
        return self._metadata.state_dict_metadata[name]

    def places(self, name: str) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Where each part of a tensor begins in the whole, and where it lies in which file."""
        from torch.distributed.checkpoint.metadata import MetadataIndex

        for chunk in self.told(name).chunks:
            at = self._metadata.storage_data[MetadataIndex(name, chunk.offsets)]
            yield tuple(chunk.offsets), at

    def part(self, at: Any) -> Any:
        """The part of a tensor that lies there."""
        import torch

        return torch.load(self._bytes(at), weights_only=True)

    def _bytes(self, at: Any) -> io.BytesIO:
        self.verify(at.relative_path)
        with self.entry.storage.read(f"{self.entry.name}/{at.relative_path}") as stream:
            stream.seek(at.offset)
            return io.BytesIO(stream.read(at.length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How one name differs between two checkpoints."""

    name: str
    what: str  # only in a, only in b, shape, value
    detail: str
    most: float | None = None  # the greatest absolute difference of a tensor


def differences(a: Contents, b: Contents) -> Iterator[Difference]:
    """Names that are not bit by bit the same in both."""
    import torch

    ours, theirs = a.names(), set(b.names())
    for name in ours:
        if name not in theirs:
            yield Difference(name=name, what="only in a", detail="")
            continue
        x, y = a.value(name), b.value(name)
        if not (torch.is_tensor(x) and torch.is_tensor(y)):
            if pickle.dumps(x) != pickle.dumps(y):
                yield Difference(name=name, what="value", detail=f"{_short(x)} → {_short(y)}")
        elif x.shape != y.shape or x.dtype != y.dtype:
            detail = f"{tuple(x.shape)} {x.dtype} → {tuple(y.shape)} {y.dtype}"
            yield Difference(name=name, what="shape", detail=detail)
        elif not torch.equal(_bits(x), _bits(y)):
            differ = int((_bits(x) != _bits(y)).any(-1).sum()) if x.numel() else 0
            most = float((x.double() - y.double()).abs().max()) if x.numel() else 0.0
            detail = f"{differ} of {x.numel()} elements"
            yield Difference(name=name, what="value", detail=detail, most=most)
    for name in b.names():
        if name not in set(ours):
            yield Difference(name=name, what="only in b", detail="")


def _bits(tensor: Any) -> Any:
    """The bytes of each element: NaNs are compared, too."""
    import torch

    return tensor.contiguous().reshape(-1, 1).view(torch.uint8)


def _short(value: Any) -> str:
    text = f"{len(value)} bytes" if isinstance(value, bytes) else repr(value)
    return text if len(text) <= 40 else text[:37] + "…"
