"""What goes over the wire: pieces of files, a batch of them in one request.

    POST URL/ship/v1/JOB    Authorization: Bearer TOKEN    Content-Encoding: deflate, or none
        piece piece piece …           each: name, offset, bytes
    200 {"sizes": {"attempt-0/rank-0.ett": 8192}}      bytes of each file that are on disk now
    409 {"error": …}                                   other bytes are there: another run's

    GET URL/ship/v1/JOB     200 {"sizes": …}           what the server has of the job

A piece behind a file's end is compared with what is there, then what is new is added: a batch that
was sent twice changes nothing. One beyond the end is left, and the size tells where to go on. The
answer comes after fdatasync. 413, 429, 507: too large, too fast, disk full: nothing is lost, try
again.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torchett.ship.files import LONGEST_NAME, kind_of

PATH = "/ship/v1"
CONTENT_TYPE = "application/x-ett-ship"
MOST_PIECES = 4096  # in a batch
BATCH_BYTES = 4 << 20  # that a client puts into one, before compression
BODY_BYTES = 16 << 20  # that a server takes, compressed
UNPACKED_BYTES = 32 << 20  # and what they may unpack to
_HEAD = struct.Struct("<HBxIQ")  # bytes of the name, whether it replaces, bytes, offset


class ProtocolError(ValueError):
    """A batch that is not one: one line, without the client's bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes of one file at one offset. One that replaces is the whole file."""

    name: str
    offset: int
    data: bytes
    replaces: bool = False


def packed(pieces: Iterable[Piece]) -> bytes:
    """A batch as bytes."""
    parts = []
    for piece in pieces:
        name = piece.name.encode()
        parts.append(_HEAD.pack(len(name), piece.replaces, len(piece.data), piece.offset))
        parts += [name, piece.data]
    return b"".join(parts)


def unpacked(data: bytes) -> Iterator[Piece]:
    """The pieces of a batch; ProtocolError where it is not one."""
    at = count = 0
    while at < len(data):
        count += 1
        if count > MOST_PIECES:
            raise ProtocolError(f"more than {MOST_PIECES} pieces")
        if at + _HEAD.size > len(data):
            raise ProtocolError(f"a piece cut off at byte {at}")
        length, replaces, size, offset = _HEAD.unpack_from(data, at)
        begin = at + _HEAD.size + length
        if length > LONGEST_NAME or begin + size > len(data) or offset >= 1 << 62:
            raise ProtocolError(f"no piece at byte {at}")
        name = data[begin - length : begin].decode("ascii", errors="replace")
        kind = kind_of(name)
        if kind is None or (kind == "replaced") != bool(replaces) or (replaces and offset):
            raise ProtocolError(f"no file of a run is called so: piece {count}")
        at = begin + size
        yield Piece(name=name, offset=offset, data=data[begin:at], replaces=bool(replaces))
