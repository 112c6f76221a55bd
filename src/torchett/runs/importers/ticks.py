"""Ticks: a file that says when each step was over (or began) made into steps that last.

    tick      10          20          30                     40
    steps      ├ 11 … 20 ─┤├ 21 … 30 ─┤        ├── 31 … 40 ──┤
                                       ╰ gap ╯   a stall: the rest is no step's time

Between two ticks lie the steps from one to the other. Where that took more than `stall` times the
usual, the usual is the steps' and what is over is left to nobody. How long the steps before an
attempt's first tick took is known only if it says so: else they count, their time does not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

STALL = 1.5


@dataclass(frozen=True, slots=True)
class Tick:
    """Step `index` was over at `t_s`; it took `took_s`, where that was said."""

    index: int
    t_s: float
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """`count` steps from `index`, in t0…t1."""

    index: int
    count: int
    t0_s: float
    t1_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What is usual: seconds of a step, and how many steps lie between ticks."""

    step_s: float = 0.0
    stride: int = 1


def pace(attempts: Iterable[Sequence[Tick]]) -> Pace:
    """The median over all attempts."""
    pairs = [pair for ticks in attempts for pair in pairwise(ticks)]
    if not pairs:
        return Pace()
    return Pace(
        step_s=median((b.t_s - a.t_s) / (b.index - a.index) for a, b in pairs),
        stride=round(median(b.index - a.index for a, b in pairs)),
    )


def runs(
    ticks: Sequence[Tick], usual: Pace, *, stall: float = STALL, resumed_at: int | None = None
) -> list[Run]:
    """The steps of one attempt, in order of its ticks (whose indices rise).

    `resumed_at` is the attempt's first step where something says so; else as many steps as
    usual lie before the first tick.
    """
    if not ticks:
        return []
    first = ticks[0]
    begin = first.index - usual.stride + 1 if resumed_at is None else resumed_at
    begin = min(max(begin, 0 if first.index == 0 else 1), first.index)
    count = first.index - begin + 1
    out = [Run(begin, count, first.t_s - count * first.took_s, first.t_s)]
    for a, b in pairwise(ticks):
        count = b.index - a.index
        took = b.t_s - a.t_s
        if stall and usual.step_s and took > stall * count * usual.step_s:
            took = count * usual.step_s
        out.append(Run(a.index + 1, count, b.t_s - took, b.t_s))
    return out


def stalled_s(ticks: Sequence[Tick], found: Sequence[Run]) -> tuple[int, float]:
    """How many gaps the runs of these ticks leave between them, and their seconds."""
    gaps = [b.t0_s - a.t1_s for a, b in pairwise(found) if b.t0_s > a.t1_s]
    return len(gaps), sum(gaps)
