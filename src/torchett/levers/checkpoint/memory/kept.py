"""A snapshot of one rank as the keeper knows it: which it is, where it lies, and its checksum."""

import contextlib
import mmap
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torchett.levers.checkpoint.memory.frames import PIECE


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotId:
    """One rank's part of the state after a step; `token` is the same on all ranks, and grows."""

    token: str
    step: int
    rank: int
    world_size: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> "SnapshotId":
        return cls(
            token=str(told["token"]),
            step=int(told["step"]),
            rank=int(told["rank"]),
            world_size=int(told["world_size"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """What makes a buffer a snapshot: `head` says what lies where, `crc32` is over both."""

    id: SnapshotId
    head: bytes
    size: int  # of the bytes in the buffer
    crc32: int

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id.to_json(), "size": self.size, "crc32": self.crc32}

    @classmethod
    def from_json(cls, told: dict[str, Any], head: bytes) -> "Sealed":
        return cls(
            id=SnapshotId.from_json(told["id"]),
            head=head,
            size=int(told["size"]),
            crc32=int(told["crc32"]),
        )


class Buffer:
    """Shared memory with at most one snapshot in it."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd, self.size = fd, size
        self.sealed: Sealed | None = None

    @classmethod
    def make(cls, size: int) -> "Buffer":
        fd = os.memfd_create("ett-snapshot")
        os.ftruncate(fd, max(size, 1))
        return cls(fd, max(size, 1))

    def map(self) -> mmap.mmap:
        return mmap.mmap(self.fd, self.size)

    @contextlib.contextmanager
    def viewed(self) -> Iterator[memoryview]:
        """The bytes; a failed reader may still hold parts of them, which are freed with it."""
        memory = self.map()
        view = memoryview(memory)
        try:
            yield view
        finally:
            with contextlib.suppress(BufferError):
                view.release()
                memory.close()

    def seal(self, id: SnapshotId, head: bytes, size: int) -> Sealed:
        """Take the checksum: from now on this is a snapshot."""
        with self.viewed() as view:
            self.sealed = Sealed(id=id, head=head, size=size, crc32=crc_of(head, view[:size]))
        return self.sealed

    def close(self) -> None:
        self.sealed = None
        os.close(self.fd)


def crc_of(head: bytes, data: memoryview) -> int:
    """The checksum over a snapshot's head and its bytes, in pieces without the GIL."""
    crc = zlib.crc32(head)
    for at in range(0, len(data), PIECE):
        crc = zlib.crc32(data[at : at + PIECE], crc)
    return crc
