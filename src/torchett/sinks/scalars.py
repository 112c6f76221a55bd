"""What every sink shows: ETT% and groups as they grew over the job, and its final figures.

ett/percent          of the time up to each point
ett/seconds/GROUP    rank-seconds up to each point
ett/step_seconds     the median step between two points
final figures        as `ett report --json` has them, flattened
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.ledger.slices import slices
from torchett.model.accounts import GROUPS

POINTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Scalars at one time: seconds since the job's window began, and on the wall clock."""

    at_s: float
    wall_s: float
    values: dict[str, float]


def points(ledger: Ledger, history: History, count: int = POINTS) -> list[Point]:
    """The job's scalars at `count` times, the last of them its end."""
    lo, hi = ledger.window.start_ns, ledger.window.end_ns
    if hi <= lo:
        return []
    times = lo + (np.arange(1, count + 1, dtype=np.int64) * (hi - lo)) // count
    grown = _grown(ledger, history, times)
    total = np.maximum(sum(grown.values(), np.zeros(count)), 1.0)
    paces = _paces(history, lo, times)
    out = []
    for i, t in enumerate(times.tolist()):
        values = {"ett/percent": 100 * float(grown["effective"][i] / total[i])}
        values |= {f"ett/seconds/{group}": float(ns[i]) / 1e9 for group, ns in grown.items()}
        if i in paces:
            values["ett/step_seconds"] = paces[i]
        wall_s = history.epoch_s + t / 1e9
        out.append(Point(at_s=(t - lo) / 1e9, wall_s=wall_s, values=values))
    return out


def now(ledger: Ledger) -> Point:
    """The scalars as of the ledger, of a run on the wall clock."""
    values = {"ett/percent": ledger.ett_percent}
    values |= {f"ett/seconds/{group}": ns / 1e9 for group, ns in ledger.groups.items()}
    return Point(at_s=ledger.window_ns / 1e9, wall_s=ledger.window.end_ns / 1e9, values=values)


def _grown(
    ledger: Ledger, history: History, times: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[np.float64]]:
    """Group → rank-nanoseconds up to each time."""
    pieces: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for piece in slices(ledger, history):
        pieces[piece.group].append((piece.t0_ns, piece.t1_ns))
    grown: dict[str, npt.NDArray[np.float64]] = {}
    low = int(times[0])
    at = (times - low).astype(np.float64)
    for group in GROUPS:
        edges = np.array(pieces[group], dtype=np.int64).reshape(-1, 2) - low
        # Time up to t: what has begun by then less what is over by then, each measured to t.
        begun, over = (_measured(np.sort(edges[:, k]).astype(np.float64), at) for k in (0, 1))
        grown[group] = begun - over
    return grown


def _measured(
    since: npt.NDArray[np.float64], at: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """At each time: the sum of how long ago each of the earlier `since` (sorted) was."""
    before = np.searchsorted(since, at, "right")
    sums = np.concatenate(([0.0], np.cumsum(since)))
    return np.asarray(before * at - sums[before], dtype=np.float64)


def _paces(history: History, lo: int, times: npt.NDArray[np.int64]) -> dict[int, float]:
    """The median duration of the steps that ended in each stretch, where any did."""
    steps = history.rows.take(history.rows.is_step)
    cell = np.searchsorted(times, steps.t1_ns, "left")
    order = np.argsort(cell, kind="stable")
    cell, took = cell[order], steps.median[order]
    edges = np.searchsorted(cell, np.arange(len(times) + 1))
    return {
        i: float(np.median(took[edges[i] : edges[i + 1]]))
        for i in range(len(times))
        if edges[i + 1] > edges[i]
    }


def final(ledger: Ledger) -> dict[str, float]:
    """The report's figures by one flat name each."""
    out: dict[str, float] = {}

    def take(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                take(f"{name}/{key}", inner)
        elif isinstance(value, list):
            out[f"{name}/count"] = float(len(value))
            if value:
                out[f"{name}/mean"] = sum(value) / len(value)
        elif isinstance(value, int | float):
            out[name] = float(value)

    for key, value in ledger.to_json().items():
        take(f"ett/final/{key}", value)
    return out
