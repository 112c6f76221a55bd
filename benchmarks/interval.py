"""How much more the auto interval wastes than an oracle that knows the failure rate.

    ./dev bench interval [--seeds 1000] [--blocking 15] [--mtbf-hours 8]

Jobs are played save by save: failures come at random, a failure loses all since the last save, and
the auto interval hears what a trainer would tell it (each save's blocking, the time that passed,
and in the next attempt that the last one failed), beginning with a prior that is right, or wrong by
four times either way. The oracle knows the true rate and meets the very same failures.

    held       what the interval held after that many days wastes from then on, by the exact
               formula, over what the oracle's wastes; the mean over all seeds. The bars are on this
    so far     blocked and lost time since the job began over the oracle's, learning included
    changed    the rate changes to four times less or more half-way: what is held at the end

Waste is blocking and lost work; recovery and the upload's lag are the same for both.
"""

import random
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from _table import Bar, Column, Report, Row, Sheet, options

from torchett.levers.checkpoint.interval.interval import (
    DAY_S,
    AutoInterval,
    Costs,
    optimum_s,
    waste,
)

PRIORS = (0.25, 1.0, 4.0)


class Chooser(Protocol):
    """Whoever says how long to train until the next save."""

    def interval_s(self) -> float: ...
    def saved(self, took_s: float, blocking_s: float) -> None: ...
    def failed(self, after_s: float) -> None: ...


@dataclass(slots=True)
class Oracle:
    """Knows the rate."""

    best_s: float

    def interval_s(self) -> float:
        return self.best_s

    def saved(self, took_s: float, blocking_s: float) -> None:
        pass

    def failed(self, after_s: float) -> None:
        pass


class Learner:
    """AutoInterval as a saver uses it, a new one each attempt."""

    def __init__(self, prior_mtbf_s: float) -> None:
        self._prior_mtbf_s = prior_mtbf_s
        self.auto = AutoInterval(prior_mtbf_s=prior_mtbf_s)

    def interval_s(self) -> float:
        return self.auto.interval_s()

    def saved(self, took_s: float, blocking_s: float) -> None:
        self.auto.observe_exposure(took_s)
        self.auto.observe_blocking(blocking_s)

    def failed(self, after_s: float) -> None:
        state = self.auto.to_json()
        self.auto = AutoInterval(prior_mtbf_s=self._prior_mtbf_s, state=state)
        self.auto.observe_failure(after_s, 1)


def failures(seed: int, mtbfs: Sequence[tuple[float, float]]) -> list[float]:
    """Times of failures; `mtbfs` are (until, mean time between them)."""
    rng, t, times = random.Random(seed), 0.0, []
    for until_s, mtbf_s in mtbfs:
        while (t := t + rng.expovariate(1 / mtbf_s)) < until_s:
            times.append(t)
        t = until_s  # without memory: it may begin anew at the change
    return times


def play(
    chooser: Chooser, times: Sequence[float], blocking_s: float, looks: Sequence[float]
) -> Iterator[tuple[float, float]]:
    """At each look: the interval held then, and the seconds wasted so far."""
    wasted, at, pending = 0.0, 0.0, [*looks]
    for begin, end in pairwise([0.0, *times, looks[-1] + 1]):
        at = begin
        while True:
            interval_s = chooser.interval_s()
            upto = min(at + interval_s + blocking_s, end)
            while pending and pending[0] <= upto:
                pending.pop(0)
                yield interval_s, wasted
            if not pending:
                return
            if upto == end:
                break
            chooser.saved(upto - at, blocking_s)
            wasted += blocking_s
            at = upto
        chooser.failed(end - at)
        wasted += end - at


def compare(args: Namespace, prior: float) -> list[Row]:
    """A row for each look: the learner against the oracle, over all seeds."""
    mtbf_s, looks = args.mtbf_hours * 3600, [day * DAY_S for day in args.days]
    costs = Costs(blocking_s=args.blocking, mtbf_s=mtbf_s)
    best_s = optimum_s(args.blocking, mtbf_s)
    least = waste(best_s, costs).total
    held, auto, oracle = ([0.0] * len(looks) for _ in range(3))
    for seed in range(args.seeds):
        times = failures(seed, [(looks[-1], mtbf_s)])
        learner = play(Learner(prior * mtbf_s), times, args.blocking, looks)
        knowing = play(Oracle(best_s), times, args.blocking, looks)
        for i, ((interval_s, ours), (_, theirs)) in enumerate(zip(learner, knowing, strict=True)):
            held[i] += waste(interval_s, costs).total / least
            auto[i] += ours
            oracle[i] += theirs
    return [
        {
            "prior": f"{prior:g}×",
            "days": day,
            "held": held[i] / args.seeds,
            "so_far": auto[i] / oracle[i],
        }
        for i, day in enumerate(args.days)
    ]


def changed(args: Namespace, factor: float) -> Row:
    """The same after the rate changed half-way."""
    days = args.days[-1]
    mtbf_s, end = args.mtbf_hours * 3600, 2 * days * DAY_S
    costs = Costs(blocking_s=args.blocking, mtbf_s=mtbf_s * factor)
    least = waste(optimum_s(args.blocking, costs.mtbf_s), costs).total
    ratio = 0.0
    for seed in range(args.seeds // 4):
        times = failures(seed, [(end / 2, mtbf_s), (end, costs.mtbf_s)])
        ((interval_s, _),) = play(Learner(mtbf_s), times, args.blocking, [end])
        ratio += waste(interval_s, costs).total / least
    hours = f"{args.mtbf_hours:g} h → {args.mtbf_hours * factor:g} h"
    return {"mtbf": hours, "days": f"{days} + {days}", "held": ratio / (args.seeds // 4)}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--blocking", type=float, default=15.0, help="seconds a save blocks")
    parser.add_argument("--mtbf-hours", type=float, default=8.0)
    parser.add_argument("--days", type=int, nargs="+", default=[1, 3, 10])
    args = parser.parse_args()
    if args.quick:
        args.seeds = 100
    rows = [row for prior in PRIORS for row in compare(args, prior)]
    moved = [changed(args, factor) for factor in (0.25, 4.0)]
    best_s = optimum_s(args.blocking, args.mtbf_hours * 3600)
    facts = f"{args.blocking:g} s a save, a failure every {args.mtbf_hours:g} h"
    report = Report("interval", facts={"job": facts, "seeds": f"{args.seeds} seeds"})
    ratio = "{:.4f}".format
    report.sheets = [
        Sheet(
            f"waste over an oracle's, which saves every {best_s:.1f} s",
            [
                Column("prior", "prior MTBF"),
                Column("days", "after days", "{}".format),
                Column("held", "held", ratio),
                Column("so_far", "so far", ratio),
            ],
            rows,
        ),
        Sheet(
            "after a change of the rate",
            [Column("mtbf", "MTBF"), Column("days", "days"), Column("held", "held", ratio)],
            moved,
        ),
    ]
    for day, most in ((1, 1.10), (10, 1.01)):
        found = [row["held"] for row in rows if row["days"] == day]
        if found:
            worst = max(found)
            report.bars.append(
                Bar(f"held after {day} d, worst prior", f"≤ {most}×", ratio(worst), worst <= most)
            )
    report.show(args.json)


if __name__ == "__main__":
    main()
