"""The manifest: what a checkpoint consists of, and the sums by which to tell.

    {"format": "checkpoint/1", "step": 39, "world_size": 4, …, "items": 61,
     "files": {".metadata": {"size": 4096, "crc32": 123}, "__0_0.distcp": {…}}, "crc32": 456}

It is written last. A folder without a whole one is not a checkpoint.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torchett.levers.checkpoint.errors import CorruptCheckpoint

NAME = "manifest.json"
FORMAT = "checkpoint/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """Size and CRC-32 of a file, taken while it was written."""

    size: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One checkpoint: the state after `step`, written by `world_size` ranks."""

    step: int
    world_size: int
    items: int
    files: Mapping[str, FileSum]
    created_s: float
    metric: float | None = None
    per_rank: tuple[str, ...] = ()  # keys of the state that each rank has its own of
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    def to_bytes(self) -> bytes:
        """The manifest as it lies on storage, with a sum over itself."""
        body = {"format": FORMAT, **asdict(self)}
        return json.dumps({**body, "crc32": _sum(body)}, indent=1, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        """The manifest that `to_bytes` wrote; CorruptCheckpoint if one bit is another."""
        try:
            body: dict[str, Any] = json.loads(data)
            crc = body.pop("crc32")
            if body["format"] != FORMAT:
                raise CorruptCheckpoint(f"expected format {FORMAT}, found {body['format']!r}")
            if crc != _sum(body):
                raise CorruptCheckpoint(f"{NAME} does not match its own checksum")
            del body["format"]
            files = {name: FileSum(**file) for name, file in body.pop("files").items()}
            return cls(files=files, per_rank=tuple(body.pop("per_rank")), **body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptCheckpoint(f"{NAME} is not whole: {error}") from None


def _sum(body: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
