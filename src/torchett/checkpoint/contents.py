"""What a checkpoint holds, name by name, without a model to load it into."""

import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchett.checkpoint.catalog import Entry, verify
from torchett.checkpoint.errors import CorruptCheckpoint
from torchett.checkpoint.writer import METADATA


class Contents:
    """The values of one checkpoint; it is verified first, because reading it unpickles."""

    def __init__(self, entry: Entry) -> None:
        problems = verify(entry)
        if problems:
            raise CorruptCheckpoint(f"{entry.path} is corrupt: {'; '.join(problems)}")
        self._entry = entry
        with entry.storage.read(f"{entry.name}/{METADATA}") as stream:
            self._metadata = pickle.loads(stream.read())

    def names(self) -> list[str]:
        return list(self._metadata.state_dict_metadata)

    def value(self, name: str) -> Any:
        """The whole tensor, whichever ranks wrote its parts, or the object."""
        import torch
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

        told = self._metadata.state_dict_metadata[name]
        if not isinstance(told, TensorStorageMetadata):
            return torch.load(self._bytes(MetadataIndex(name)), weights_only=False)
        whole = torch.empty(told.size, dtype=told.properties.dtype)
        for chunk in told.chunks:
            part = torch.load(self._bytes(MetadataIndex(name, chunk.offsets)), weights_only=True)
            target = whole
            for dim, (start, length) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
                target = target.narrow(dim, start, length)
            target.copy_(part)
        return whole

    def _bytes(self, index: Any) -> io.BytesIO:
        at = self._metadata.storage_data[index]
        with self._entry.storage.read(f"{self._entry.name}/{at.relative_path}") as stream:
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
