"""The flight record's bytes: a log in the run folder and a ring in shared memory.

    RUN/attempt-0/rank-0.ett    append-only: one JSON line (who and when), then chunks
    /dev/shm/ett-….ring         mmapped while the rank lives: state, texts and a ring of entries

Entries go to the ring first (a store to shared memory: a killed process loses nothing). A thread
of the recorder folds the older ones into frames, another appends these to the log as chunks:

    ring    │ block │ texts │ … e512 e513 …               │      the last 65536 entries
    .ett    │ {"format":"flight/2",…}⏎ │ chunk (entries 0–255, folded) │ chunk … │

A chunk says up to which entry it reaches, so a reader takes the log and then the ring's rest. The
ring is read first and the log second: what the writer may overwrite meanwhile is in the log then.
The log's first line says where the ring is. The ring does not need the log: its texts begin with
that same first line, then follow accounts' names and how the process ended, a line of JSON each.

Records of flight/1 have a smaller ring without texts, beside the log: rank-0.live.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = "flight/2"
_READABLE = (FORMAT, "flight/1")

# An entry of the ring. `seq` is stored last: an entry is whole when its seq is the expected one.
ENTRY = struct.Struct("<qqqqqq")  # wait began, begin, end, index, meta, seq + 1
Entry = tuple[int, int, int, int, int, int]
SLOTS = 65536  # 3 MiB: enough for some 50 ms of the shortest steps, until the log has them

# The block of state, at offset 0 of the ring's file; texts follow at TEXTS, entries at RING.
BLOCK = struct.Struct("<8sIIqq")  # magic, version, slots, pid, entries dropped
BLOCK_MAGIC = b"ETTLIVE\x01"
VERSION = 2
DROPPED_AT = 24
BEAT_AT = 32  # monotonic ns of the last sign of life besides entries
STEPPED_AT = 40  # one byte: whether a step is over
TEXT_SIZE_AT = 48  # how many bytes of texts are whole
OPEN = struct.Struct("<qqq")  # account + 1 (0: free), begin, background
OPEN_AT = 64
OPEN_SLOTS = 64
TEXTS = 4096
RING = 65536
LIVE_BYTES = RING + SLOTS * ENTRY.size
RINGS = {1: (512, 4096), VERSION: (SLOTS, RING)}  # by version: slots, and where they begin

# Kinds of entry, in the low byte of meta; then the account (16 bits) and the count.
STEP, SPAN, BACKGROUND, CHECKPOINT = 1, 2, 3, 4
ACCOUNT_SHIFT, COUNT_SHIFT = 8, 24

# A frame of the log: one span, one step, or a run of them folded together.
FRAME = struct.Struct("<BxHIqqqfffxxxx")  # kind, account, count, index, begin, end, least…most (s)

CHUNK = struct.Struct("<4sHHIIIIq")  # magic, type, frame size, length, crc, attempt, rank, reach
CHUNK_MAGIC = b"ETT\x1e"
FRAMES, NOTE = 1, 2


def header_line(facts: dict[str, Any]) -> bytes:
    """The first line of a log, with a checksum as its last key."""
    body = json.dumps({"format": FORMAT, **facts}).encode()[:-1]
    return body + b', "crc": %d}\n' % zlib.crc32(body)


def read_header(line: bytes) -> dict[str, Any]:
    """The facts of a first line; ValueError if it is not one, or damaged."""
    body, found, crc = line.rpartition(b', "crc": ')
    if not found or crc != b"%d}\n" % zlib.crc32(body):
        raise ValueError("a damaged first line")
    facts: dict[str, Any] = json.loads(line)
    if facts["format"] not in _READABLE:
        raise ValueError(facts["format"])
    return facts


def meta(kind: int, account: int = 0, count: int = 1) -> int:
    return kind | account << ACCOUNT_SHIFT | count << COUNT_SHIFT


def chunk(kind: int, payload: bytes, *, attempt: int, rank: int, reach: int) -> bytes:
    """One chunk: frames, or a note (a JSON object)."""
    head = (CHUNK_MAGIC, kind, FRAME.size, len(payload))
    crc = zlib.crc32(payload, zlib.crc32(CHUNK.pack(*head, 0, attempt, rank, reach)))
    return CHUNK.pack(*head, crc, attempt, rank, reach) + payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A whole chunk of the log."""

    kind: int
    attempt: int
    rank: int
    reach: int  # entries below this one are in the log
    payload: memoryview

    @property
    def size(self) -> int:
        return CHUNK.size + len(self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Bytes that are no chunk; at the end of a log they may be one that is still being written."""

    size: int
    at_end: bool


def chunks(data: memoryview) -> Iterator[Chunk | Damage]:
    """The chunks in a log (without its first line); damaged bytes are skipped and reported."""
    at = 0
    while at < len(data):
        found = _chunk_at(data, at)
        if found is not None:
            yield found
            at += found.size
            continue
        stop = _next_chunk(data, at + 1)
        yield Damage(size=stop - at, at_end=stop == len(data))
        at = stop


def _next_chunk(data: memoryview, at: int) -> int:
    """Where the next whole chunk begins; the end of the data if there is none."""
    raw = bytes(data)
    while (at := raw.find(CHUNK_MAGIC, at)) >= 0:
        if _chunk_at(data, at) is not None:
            return at
        at += 1
    return len(data)


def _chunk_at(data: memoryview, at: int) -> Chunk | None:
    if at + CHUNK.size > len(data):
        return None
    magic, kind, frame, length, crc, attempt, rank, reach = CHUNK.unpack_from(data, at)
    end = at + CHUNK.size + length
    if magic != CHUNK_MAGIC or frame != FRAME.size or end > len(data):
        return None
    payload = data[at + CHUNK.size : end]
    head = CHUNK.pack(magic, kind, frame, length, 0, attempt, rank, reach)
    if zlib.crc32(payload, zlib.crc32(head)) != crc:
        return None
    return Chunk(kind=kind, attempt=attempt, rank=rank, reach=reach, payload=payload)


def attempt_folder(run: Path, attempt: int, restart: int = 0) -> Path:
    return run / (f"attempt-{attempt}.{restart}" if restart else f"attempt-{attempt}")


def log_path(folder: Path, rank: int, writer: int = 0) -> Path:
    """Where the `writer`-th process that claims to be `rank` keeps its log."""
    return folder / (f"rank-{rank}~{writer}.ett" if writer else f"rank-{rank}.ett")
