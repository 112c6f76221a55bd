"""How far a rank has got, from its log and its ring, without numpy."""

from dataclasses import dataclass
from json import loads
from pathlib import Path

from torchett.record.flight.format import (
    COUNT_SHIFT,
    FRAME,
    FRAMES,
    NOTE,
    STEP,
    Chunk,
    attempt_folder,
    chunks,
    read_header,
)
from torchett.record.flight.ring import Ring, read_ring, ring_path


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """What one process that was a rank has done so far."""

    last_step: int  # −1: none
    ended_well: bool  # it recorded its exit, and no error
    in_span: bool  # it is inside a span: a save, an evaluation, anything that is timed


def rank_progress(run: Path, attempt: int, restart: int, rank: int) -> RankProgress | None:
    """The progress of the newest process that was this rank; None if it keeps no record."""
    folder = attempt_folder(run, attempt, restart)
    found: list[tuple[int, RankProgress]] = []
    for log in (*folder.glob(f"rank-{rank}.ett"), *folder.glob(f"rank-{rank}~*.ett")):
        try:
            data = log.read_bytes()
            head = data.index(b"\n") + 1
            facts = read_header(data[:head])
            ring = read_ring(ring_path(log, facts))
            found.append((int(facts["began_ns"]), _progress(data[head:], ring)))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return max(found, key=lambda one: one[0], default=(0, None))[1]


def _progress(log: bytes, ring: Ring | None) -> RankProgress:
    last, ended_well = -1, False
    for piece in chunks(memoryview(log)):
        if not isinstance(piece, Chunk):
            continue
        if piece.kind == FRAMES:
            for kind, _, count, index, *_ in FRAME.iter_unpack(piece.payload):
                last = max(last, index + count - 1) if kind == STEP else last
        elif piece.kind == NOTE:
            note = loads(bytes(piece.payload))
            ended_well = ended_well or ("exit_ns" in note and "error" not in note)
    for _, _, _, index, what, _ in ring.since(0) if ring else ():
        if what & 0xFF == STEP:
            last = max(last, index + (what >> COUNT_SHIFT) - 1)
    return RankProgress(
        last_step=last, ended_well=ended_well, in_span=bool(ring and ring.open_spans)
    )
