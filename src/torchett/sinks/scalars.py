"""The scalars of every sink: ETT% and the groups' seconds over time, and the final figures.

ett/percent          ETT% up to each point
ett/seconds/GROUP    rank-seconds up to each point
ett/step_seconds     the median step between two points
final figures        those of `ett report --json`, flattened
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.ledger.pixels import time_upto
from torchett.ledger.timeline import timeline
from torchett.model.accounts import GROUPS

POINTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Scalars at one time, in seconds since the begin of the job's window and on the wall clock."""

    at_s: float
    wall_s: float
    values: dict[str, float]


def points(ledger: Ledger, history: History, count: int = POINTS) -> list[Point]:
    """The job's scalars at `count` times; the last one is its end."""
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
    """The scalars of a ledger whose run is on the wall clock."""
    values = {"ett/percent": ledger.ett_percent}
    values |= {f"ett/seconds/{group}": ns / 1e9 for group, ns in ledger.groups.items()}
    return Point(at_s=ledger.window_ns / 1e9, wall_s=ledger.window.end_ns / 1e9, values=values)


def _grown(
    ledger: Ledger, history: History, times: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[np.float64]]:
    """Group → rank-nanoseconds up to each time."""
    found = timeline(ledger, history)
    edges = np.concatenate(([ledger.window.start_ns], times))
    return {
        group: time_upto(found.t0_ns[mine], found.t1_ns[mine], edges)[1:]
        for place, group in enumerate(GROUPS)
        for mine in (found.group == place,)
    }


def _paces(history: History, lo: int, times: npt.NDArray[np.int64]) -> dict[int, float]:
    """The median duration of the steps that ended in each interval; none without such steps."""
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
    """The report's figures by flat names."""
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
