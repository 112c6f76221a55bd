"""A run as Chrome-trace JSON for ui.perfetto.dev: a track for each rank, a slice for each segment.

The slices are exact and sum to the ledger. In a long job, neighbours of one account are joined.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.ledger.timeline import Segment, timeline
from torchett.model.errors import RunError

_MOST_STEPS = 200_000  # with more steps, slices are joined
# Names of colours in Chrome's viewer. Perfetto chooses the colour by the category.
_COLOURS = {
    "effective": "good",
    "start": "rail_load",
    "recover": "terrible",
    "in_loop": "bad",
    "shutdown": "rail_idle",
    "unsaved": "terrible",
    "unattributed": "grey",
}
_RANKS, _JOB = 1, 0


def write(ledger: Ledger, history: History) -> Iterator[str]:
    """The lines of the trace; RunError if its slices do not sum to the ledger."""
    zero = ledger.window.start_ns
    yield '{"displayTimeUnit": "ms", "traceEvents": [\n'
    for event in _names(ledger):
        yield _line(event)
    found: Iterable[Segment] = timeline(ledger, history).segments()
    if int(history.rows.is_step.sum()) > _MOST_STEPS:
        found = _joined(found)
    sums: Counter[str] = Counter()
    for piece in found:
        sums[piece.account] += piece.t1_ns - piece.t0_ns
        yield _line(_slice(piece, zero))
    if dict(sums) != ledger.accounts:
        raise RunError(f"{ledger.job}: the segments of its trace do not sum to the ledger")
    for event in _marks(ledger, history, zero):
        yield _line(event)
    totals = {name: ns / 1e9 for name, ns in ledger.accounts.items()}
    other = {"job": ledger.job, "ett_percent": ledger.ett_percent, "rank_seconds": totals}
    begin = {"began_s": history.epoch_s + zero / 1e9}
    yield _line({"ph": "M", "name": "trace_end", "pid": _JOB}, last=True)
    yield f'], "otherData": {json.dumps(other | begin)}}}\n'


def _line(event: dict[str, Any], last: bool = False) -> str:
    return json.dumps(event, ensure_ascii=False) + ("\n" if last else ",\n")


def _slice(piece: Segment, zero: int) -> dict[str, Any]:
    args: dict[str, Any] = {"attempt": piece.attempt, "account": piece.account}
    name = piece.account
    if piece.step is not None:
        args |= {"step": piece.step, "steps": piece.count}
    return {
        "ph": "X",
        "name": name,
        "cat": piece.group,
        "cname": _COLOURS[piece.group],
        "pid": _RANKS,
        "tid": piece.rank,
        "ts": (piece.t0_ns - zero) / 1e3,
        "dur": (piece.t1_ns - piece.t0_ns) / 1e3,
        "args": args,
    }


def _names(ledger: Ledger) -> Iterator[dict[str, Any]]:
    for pid, name in ((_JOB, f"job {ledger.job}"), (_RANKS, "ranks")):
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    ranks = max((a.tenure.attempt.ranks for a in ledger.attempts), default=0)
    for rank in range(ranks):
        yield {
            "ph": "M", "name": "thread_name", "pid": _RANKS, "tid": rank,
            "args": {"name": f"rank {rank}"},
        }  # fmt: skip


def _marks(ledger: Ledger, history: History, zero: int) -> Iterator[dict[str, Any]]:
    """Attempts and durable checkpoints, on the track of the job."""
    for attempt in ledger.attempts:
        tenure = attempt.tenure
        cause = tenure.attempt.cause
        yield {
            "ph": "X",
            "name": f"attempt {tenure.attempt.number}: {tenure.state}"
            + (f" ({cause})" if cause else ""),
            "cat": "attempt",
            "pid": _JOB,
            "tid": 0,
            "ts": (tenure.lo_ns - zero) / 1e3,
            "dur": (tenure.hi_ns - tenure.lo_ns) / 1e3,
            "args": {name: ns / 1e9 for name, ns in attempt.accounts.items()},
        }
    for checkpoint in history.checkpoints:
        yield {
            "ph": "i",
            "s": "p",
            "name": f"checkpoint of step {checkpoint.step}",
            "pid": _JOB,
            "tid": 0,
            "ts": (checkpoint.durable_ns - zero) / 1e3,
        }


def _joined(found: Iterable[Segment]) -> Iterator[Segment]:
    """The segments, with neighbours of one account in one lane joined."""
    held: Segment | None = None
    for piece in found:
        if held is not None and (
            (held.attempt, held.rank, held.account, held.group, held.t1_ns)
            == (piece.attempt, piece.rank, piece.account, piece.group, piece.t0_ns)
        ):
            count = held.count + piece.count if held.step is not None else 1
            held = replace(held, t1_ns=piece.t1_ns, count=count)
            continue
        if held is not None:
            yield held
        held = piece
    if held is not None:
        yield held
