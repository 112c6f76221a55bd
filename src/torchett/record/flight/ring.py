"""The ring of a rank: a file in shared memory, which no disk can block.

    /dev/shm/ett-5f0c1a2b-0.1-3-4711-9a8b7c6d.ring
                 │        │   │ │    └ at random
                 │        │   │ └ pid
                 │        │   └ rank
                 │        └ attempt.restart
                 └ checksum of the run folder's path

The process that writes a ring holds a lock on it for as long as it lives. The lock goes with the
process, however that ends, in any container: a ring without a lock has no writer.
"""

import fcntl
import json
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchett.record.flight.format import (
    BEAT_AT,
    BLOCK,
    BLOCK_MAGIC,
    ENTRY,
    LIVE_BYTES,
    OPEN,
    OPEN_AT,
    OPEN_SLOTS,
    RING,
    RINGS,
    SLOTS,
    STEPPED_AT,
    TEXT_SIZE_AT,
    TEXTS,
    VERSION,
    Entry,
    read_header,
)

_MUST_STAY_FREE = 16 << 20  # of shared memory: loaders' workers need it, too


def folders() -> list[Path]:
    """Where rings may lie, best first: $ETT_RINGS, or shared memory and the temporary folder."""
    if given := os.environ.get("ETT_RINGS"):
        return [Path(given)]
    return [Path("/dev/shm"), Path(tempfile.gettempdir())]


class RingFile:
    """A new ring, mapped and locked. Every block of it exists: no store to it can fail."""

    def __init__(self, run: Path, *, attempt: int, restart: int, rank: int) -> None:
        """Make it in the first folder that has room, or raise OSError."""
        name = f"{_prefix(run)}{attempt}.{restart}-{rank}-{os.getpid()}-{os.urandom(4).hex()}.ring"
        error: OSError = FileNotFoundError("no folder for a ring")
        for folder in folders():
            try:
                self.path = folder / name
                self._lock_fd, self.memory = _made(self.path)
                return
            except OSError as refused:
                error = refused
        raise error

    def say(self, line: bytes) -> None:
        """Add a line to the texts; where there is no room left, it is only in the log."""
        size = int.from_bytes(self.memory[TEXT_SIZE_AT : TEXT_SIZE_AT + 8], "little")
        at = TEXTS + size
        if at + len(line) <= RING:
            self.memory[at : at + len(line)] = line
            size += len(line)
            self.memory[TEXT_SIZE_AT : TEXT_SIZE_AT + 8] = size.to_bytes(8, "little")

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def let_go(self) -> None:
        """In a forked child: the parent keeps the lock."""
        os.close(self._lock_fd)


def _made(path: Path) -> tuple[int, mmap.mmap]:
    free = os.statvfs(path.parent)
    if free.f_bavail * free.f_frsize < _MUST_STAY_FREE + LIVE_BYTES:
        raise OSError(28, f"less than {_MUST_STAY_FREE >> 20} MiB free", str(path.parent))
    making = path.with_suffix(".making")
    fd = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    locked = -1
    try:
        os.posix_fallocate(fd, 0, LIVE_BYTES)
        memory = mmap.mmap(fd, LIVE_BYTES)
        BLOCK.pack_into(memory, 0, BLOCK_MAGIC, VERSION, SLOTS, os.getpid(), 0)
        # Opened a second time: mmap keeps a copy of `fd`, and a forked child could not let it go.
        locked = os.open(making, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(making, path)
    except OSError:
        os.unlink(making)
        if locked >= 0:
            os.close(locked)
        raise
    finally:
        os.close(fd)
    return locked, memory


def _prefix(run: Path) -> str:
    return f"ett-{zlib.crc32(os.fsencode(os.path.abspath(run))):08x}-"


# Reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """What a ring's file held when it was read."""

    data: bytes
    slots: int
    begin: int  # of the entries in the data
    pid: int
    dropped: int

    @property
    def beat_ns(self) -> int:
        """The last sign of life besides entries; 0 if there was none."""
        return int.from_bytes(self.data[BEAT_AT : BEAT_AT + 8], "little", signed=True)

    @property
    def counts_drops_in_log(self) -> bool:
        """Whether the log tells how many entries below its reach were dropped: not in flight/1."""
        return self.begin > TEXTS

    @property
    def entries(self) -> memoryview:
        """All slots, in the order they lie there."""
        return memoryview(self.data)[self.begin :]

    @property
    def open_spans(self) -> list[tuple[int, int, int]]:
        """Spans that are not over: account, begin, background."""
        return open_spans(self.data)

    def since(self, reach: int) -> list[tuple[int, int, int, int, int, int]]:
        """The whole entries from number `reach` on, in order."""
        found = (
            entry
            for slot, entry in enumerate(ENTRY.iter_unpack(self.entries))
            if entry[5] > reach and (entry[5] - 1) % self.slots == slot
        )
        return sorted(found, key=lambda entry: entry[5])

    def texts(self) -> Iterator[bytes]:
        """The lines of text: the first is the log's first line. None in records of flight/1."""
        if self.begin > TEXTS:  # else there is no room
            size = int.from_bytes(self.data[TEXT_SIZE_AT : TEXT_SIZE_AT + 8], "little")
            yield from self.data[TEXTS : min(TEXTS + size, self.begin)].splitlines(keepends=True)

    def notes(self) -> list[dict[str, Any]]:
        """What the texts say after the first line."""
        found = []
        for line in list(self.texts())[1:]:
            try:
                fact = json.loads(line)
            except ValueError:
                continue  # noise
            found += [fact] if isinstance(fact, dict) else []
        return found


def open_spans(data: bytes | mmap.mmap | bytearray) -> list[tuple[int, int, int]]:
    """Spans that are not over, in the bytes of a ring's file: account, begin, background."""
    table = OPEN.iter_unpack(bytes(data[OPEN_AT : OPEN_AT + OPEN_SLOTS * OPEN.size]))
    return [(account - 1, t0, background) for account, t0, background in table if account]


def parse(data: bytes) -> Ring | None:
    """The ring in these bytes; None if they are not a complete ring."""
    if len(data) < TEXTS:
        return None
    magic, version, slots, pid, dropped = BLOCK.unpack_from(data)
    known, begin = RINGS.get(version, (0, 0))
    if magic != BLOCK_MAGIC or slots != known or len(data) != begin + slots * ENTRY.size:
        return None
    return Ring(data=data, slots=slots, begin=begin, pid=pid, dropped=dropped)


def read_ring(path: Path) -> Ring | None:
    """The ring at `path`; None if there is none, or a damaged one."""
    try:
        return parse(path.read_bytes())
    except OSError:
        return None


def ring_path(log: Path, header: dict[str, Any]) -> Path:
    """Where the ring of this log is: where its first line says, or beside it."""
    beside = log.with_suffix(".live")
    said = header.get("ring")
    if isinstance(said, str) and not beside.exists():
        return Path(said)
    return beside


def rings(run: Path, lane: str = "") -> list[Path]:
    """The rings of a run on this host; `lane` begins like ATTEMPT.RESTART-RANK-PID-."""
    return list(_found(_prefix(run) + lane))


def all_rings() -> list[Path]:
    """The rings of all runs on this host."""
    return list(_found("ett-"))


def unfinished() -> list[Path]:
    """Files that were to become rings."""
    return list(_found("ett-", ".making"))


def _found(begin: str, end: str = ".ring") -> Iterator[Path]:
    for folder in folders():
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        yield from (folder / n for n in names if n.startswith(begin) and n.endswith(end))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """A quick look at a ring: whose it is, its last beat, whether it has stepped."""

    pid: int
    beat_ns: int
    stepped: bool


_PULSE = struct.Struct(f"<8s8xq{BEAT_AT - 24}xq{STEPPED_AT - BEAT_AT - 8}x?")


def pulse(path: Path) -> Pulse | None:
    """The pulse of the ring at `path`; None if there is none."""
    try:
        with path.open("rb") as file:
            magic, pid, beat, stepped = _PULSE.unpack(file.read(_PULSE.size))
    except (OSError, struct.error):
        return None
    return Pulse(pid=pid, beat_ns=beat, stepped=stepped) if magic == BLOCK_MAGIC else None


def owner(ring: Ring) -> dict[str, Any] | None:
    """The facts of the log's first line, as the ring has them; None where they are not whole."""
    try:
        return read_header(next(ring.texts(), b""))
    except (ValueError, KeyError, TypeError):
        return None


def raw_entries(ring: mmap.mmap | bytearray, begin: int, end: int) -> bytes:
    """Entries begin…end (at most a ring of them) as they lie there, whole or not."""
    a, b = RING + begin % SLOTS * ENTRY.size, RING + end % SLOTS * ENTRY.size
    if begin == end:
        return b""
    return bytes(ring[a:b]) if a < b else bytes(ring[a:LIVE_BYTES]) + bytes(ring[RING:b])


def whole_entries(raw: bytes, begin: int) -> list[Entry]:
    """The raw entries whose numbers are begin, begin + 1, …; others are incomplete."""
    found = ENTRY.iter_unpack(raw)
    return [entry for seq, entry in enumerate(found, begin + 1) if entry[5] == seq]


def open_begins(ring: mmap.mmap | bytearray | bytes) -> list[int]:
    """When the foreground spans that are not over began."""
    return [t0 for _, t0, background in open_spans(ring) if not background]
