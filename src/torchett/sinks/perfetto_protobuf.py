"""A run as a Perfetto trace in protobuf: a track for each rank, a slice for each segment.

A slice is two packets, its begin and its end. A name is written once and then referred to by its
number. Every segment is a separate slice, so a trace of any size sums to the ledger. The trace is
written piece by piece, so memory does not grow. Field numbers: perfetto's trace_packet.proto and
track_event.proto.
"""

from collections.abc import Iterator
from typing import Final

from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.ledger.timeline import Segment, timeline
from torchett.model.errors import RunError
from torchett.sinks.protobuf import data, number, text

_PACKET: Final = 1  # of a Trace
_SEQUENCE: Final = number(10, 1)  # all packets have one writer
_CLEARED, _NEEDED = number(13, 1), number(13, 2)  # clears the names; needs the names
_BEGIN, _END, _INSTANT = number(9, 1), number(9, 2), number(9, 3)
_JOB_TRACK: Final = 1
_FIRST_RANK: Final = 1000  # the track of rank 0
_RANKS_AT_ONCE: Final = 64
_STEP_NAME: Final = number(1, 1)


def write(ledger: Ledger, history: History) -> Iterator[bytes]:
    """The trace piece by piece; RunError if its slices do not sum to the ledger."""
    zero = ledger.window.start_ns
    ranks = max((a.tenure.attempt.ranks for a in ledger.attempts), default=0)
    yield from _tracks(ledger, ranks)
    names = _Names()
    yield _packet(_CLEARED + data(12, data(3, number(1, 1) + text(2, "step"))))
    sums: dict[str, int] = {}
    for first in range(0, ranks, _RANKS_AT_ONCE):
        batch = range(first, min(first + _RANKS_AT_ONCE, ranks))
        for piece in timeline(ledger, history, list(batch)).segments():
            sums[piece.account] = sums.get(piece.account, 0) + piece.t1_ns - piece.t0_ns
            yield _slice(piece, zero, names)
    if {name: ns for name, ns in sums.items() if ns} != {
        name: ns for name, ns in ledger.accounts.items() if ns
    }:
        raise RunError(f"{ledger.job}: the segments of its trace do not sum to the ledger")
    yield from _marks(ledger, history, zero, names)


class _Names:
    """Numbers of names and categories; each is defined before its first use."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], int] = {}

    def number_of(self, field: int, name: str) -> tuple[int, bytes]:
        """The number of a name (field 2) or category (1), and its definition if it is new."""
        known = self._known.get((field, name))
        if known is not None:
            return known, b""
        fresh = self._known[field, name] = len(self._known) + 1
        return fresh, data(field, number(1, fresh) + text(2, name))


def _packet(body: bytes) -> bytes:
    return data(_PACKET, body + _SEQUENCE)


def _event(t_ns: int, kind: bytes, track: int, name: str, group: str, names: _Names,
           more: bytes = b"") -> bytes:  # fmt: skip
    name_id, name_definition = names.number_of(2, name)
    category_id, category_definition = names.number_of(1, group)
    definitions = name_definition + category_definition
    interned = data(12, definitions) if definitions else b""
    event = kind + number(11, track) + number(10, name_id) + number(3, category_id) + more
    return _packet(number(8, t_ns) + data(11, event) + interned + _NEEDED)


def _slice(piece: Segment, zero: int, names: _Names) -> bytes:
    track = _FIRST_RANK + piece.rank
    more = b"" if piece.step is None else data(4, _STEP_NAME + number(3, piece.step))
    begin = _event(piece.t0_ns - zero, _BEGIN, track, piece.account, piece.group, names, more)
    end = _packet(number(8, piece.t1_ns - zero) + data(11, _END + number(11, track)) + _NEEDED)
    return begin + end


def _tracks(ledger: Ledger, ranks: int) -> Iterator[bytes]:
    yield _packet(data(60, number(1, _JOB_TRACK) + text(2, f"job {ledger.job}")))
    for rank in range(ranks):
        described = number(1, _FIRST_RANK + rank) + text(2, f"rank {rank}")  # id and name
        yield _packet(data(60, described + number(5, _JOB_TRACK)))  # field 5: the parent track


def _marks(ledger: Ledger, history: History, zero: int, names: _Names) -> Iterator[bytes]:
    """Attempts as slices and durable checkpoints as instants, on the track of the job."""
    for attempt in ledger.attempts:
        tenure = attempt.tenure
        cause = tenure.attempt.cause
        name = f"attempt {tenure.attempt.number}: {tenure.state}" + (f" ({cause})" if cause else "")
        yield _event(tenure.lo_ns - zero, _BEGIN, _JOB_TRACK, name, "attempt", names)
        end = number(8, tenure.hi_ns - zero) + data(11, _END + number(11, _JOB_TRACK))
        yield _packet(end + _NEEDED)
    for checkpoint in history.checkpoints:
        name = f"checkpoint of step {checkpoint.step}"
        at = max(checkpoint.durable_ns - zero, 0)
        yield _event(at, _INSTANT, _JOB_TRACK, name, "checkpoint", names)
