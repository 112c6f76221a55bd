"""A small copy of a rank's ring: what its log does not hold yet, for a reader on another host.

    ring    │ state │ texts │ … e510 e511 e512 e513 … e700 │   3 MiB, entries up to 511 in the log
    copy    │ state │ e512 … e700 │                            28 KiB: a ring of flight/1

Account names and notes are in the log, too; the copy leaves them out.
"""

import os
from pathlib import Path

from torchett.record.flight.format import (
    BLOCK,
    BLOCK_MAGIC,
    CHUNK,
    CHUNK_MAGIC,
    ENTRY,
    OPEN,
    OPEN_AT,
    OPEN_SLOTS,
    RING,
    RINGS,
    SLOTS,
    VERSION,
)

_SLOTS, _BEGIN = RINGS[1]
_STATE = OPEN_AT + OPEN_SLOTS * OPEN.size
_AT_ONCE = 512


def ring_copy(path: Path, reach: int) -> bytes | None:
    """The entries after number `reach` (at most the newest 512); None if there is no such ring."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        state = os.pread(fd, _STATE, 0)
        if len(state) < _STATE:
            return None
        magic, version, slots, pid, dropped = BLOCK.unpack_from(state)
        if magic != BLOCK_MAGIC or version != VERSION or slots != SLOTS:
            return None
        entries = _entries(fd, reach)
    except OSError:
        return None
    finally:
        os.close(fd)
    made = bytearray(_BEGIN + _SLOTS * ENTRY.size)
    made[: len(state)] = state
    BLOCK.pack_into(made, 0, magic, 1, _SLOTS, pid, dropped)
    for entry in entries[-_SLOTS:]:
        seq = int.from_bytes(entry[-8:], "little")
        at = _BEGIN + (seq - 1) % _SLOTS * ENTRY.size
        made[at : at + ENTRY.size] = entry
    return bytes(made)


def _entries(fd: int, reach: int) -> list[bytes]:
    """Entries from number `reach` on, while each is the next."""
    found: list[bytes] = []
    number = reach
    while len(found) < SLOTS:
        slot = number % SLOTS
        count = min(_AT_ONCE, SLOTS - slot)
        data = os.pread(fd, count * ENTRY.size, RING + slot * ENTRY.size)
        for at in range(0, len(data) - ENTRY.size + 1, ENTRY.size):
            entry = data[at : at + ENTRY.size]
            if int.from_bytes(entry[-8:], "little") != number + 1:
                return found
            found.append(entry)
            number += 1
        if len(data) < count * ENTRY.size:
            break
    return found


class Reach:
    """How many of a ring's entries a log holds, by the heads of its chunks; read as it grows."""

    def __init__(self, begin: int) -> None:
        self._at = begin  # of the chunk after the last whole one
        self.entries = 0

    def follow(self, fd: int, size: int) -> int:
        """The entries that the log's first `size` bytes hold."""
        while self._at + CHUNK.size <= size:
            head = os.pread(fd, CHUNK.size, self._at)
            if len(head) < CHUNK.size:
                break
            magic, _, _, length, _, _, _, reach = CHUNK.unpack(head)
            if magic != CHUNK_MAGIC or self._at + CHUNK.size + length > size:
                break
            self._at += CHUNK.size + length
            self.entries = max(self.entries, reach)
        return self.entries
