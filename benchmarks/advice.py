"""Whether advice comes true: what each lever was said to win, and what it won.

    ./dev bench advice --folder DIR [--rounds 3] [--share 1.0] [--seconds 200] [--jobs …] [--gpu]

Each job is run as its user would (stock), then with each lever and with the best set from its first
second on (`_lever_jobs.py`). Predictions come from the stock run alone: of several rounds, from the
one with the median loss. What was measured is the median of the rounds.

    near     within ±20% of the rank-seconds, or ±1 point of ETT%      the bar: ≥ 80% of cells
    inside   the 80% interval of the points held it                    the bar: 75 to 90%

DIR keeps every run: what was run before is not run again, so that many short calls make one table.
`--seconds` begins no job after so long. Each miss names the account that was furthest off.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from _lever_jobs import Cell, LeverJob, lever_jobs, measure, measured, missing
from _table import Bar, Column, Report, Row, Sheet, options

from torchett.advise.advice import Adviser
from torchett.advise.job_facts import JobFacts
from torchett.cli.advise.facts import facts_of
from torchett.runs.reader import RunReader

_NEAR, _LEAST_INSIDE, _MOST_INSIDE = 0.8, 0.75, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """One job of a workload in all rounds that have it."""

    facts: list[JobFacts]

    @property
    def median(self) -> JobFacts:
        """The round whose loss is in the middle."""
        ordered = sorted(self.facts, key=lambda one: one.lost_s)
        return ordered[(len(ordered) - 1) // 2]

    @property
    def lost_s(self) -> float:
        return statistics.median(one.lost_s for one in self.facts)

    @property
    def ett_percent(self) -> float:
        return statistics.median(one.ett_percent for one in self.facts)


def rounds_of(folder: Path, name: str, job: LeverJob, cell: Cell | None, most: int) -> Rounds:
    """What was measured of a cell, in each round that has it."""
    found = []
    for turn in range(most):
        done = measured(folder / str(turn) / name, job, cell)
        if done is not None:
            found.append(facts_of(RunReader(done.run).poll()))
    return Rounds(facts=found)


def cells(folder: Path, jobs: dict[str, LeverJob], rounds: int) -> Iterator[Row]:
    """A row for each cell that was run with its stock job."""
    for name, job in jobs.items():
        stock = rounds_of(folder, name, job, None, rounds)
        if not stock.facts:
            continue
        adviser = Adviser(stock.median)
        for cell in job.cells:
            ours = rounds_of(folder, name, job, cell, rounds)
            if ours.facts:
                yield row_of(name, cell, adviser, stock, ours)


def row_of(name: str, cell: Cell, adviser: Adviser, stock: Rounds, ours: Rounds) -> Row:
    """Predicted and measured."""
    levers = sorted(cell.advised & adviser.found.keys())
    said = adviser.predict(levers)
    seconds, points = stock.lost_s - ours.lost_s, ours.ett_percent - stock.ett_percent
    near = abs(seconds - said.seconds.mid) <= 0.2 * abs(said.seconds.mid)
    near = near or abs(points - said.points.mid) <= 1.0
    return {
        "job": name,
        "cell": cell.name,
        "rounds": f"{len(stock.facts)}/{len(ours.facts)}",
        "stock": stock.ett_percent,
        "predicted_s": said.seconds.mid,
        "seconds": seconds,
        "predicted": said.points.mid,
        "low": said.points.low,
        "high": said.points.high,
        "points": points,
        "near": near,
        "inside": said.points.low <= points <= said.points.high,
        "off": furthest_off(adviser, levers, ours.median),
    }


def furthest_off(adviser: Adviser, levers: list[str], after: JobFacts) -> str:
    """The account whose loss differs most from what was expected of it."""
    expected = adviser.left(levers)
    found: dict[str, float] = {}
    for (_, name), seconds in after.lost.items():
        found[name] = found.get(name, 0.0) + seconds
    names = expected.keys() | found.keys()
    worst = max(names, key=lambda one: abs(found.get(one, 0.0) - expected.get(one, 0.0)))
    return f"{worst} {found.get(worst, 0.0):.1f}, expected {expected.get(worst, 0.0):.1f}"


def run_missing(folder: Path, jobs: dict[str, LeverJob], rounds: int, seconds: float) -> int:
    """Run what is missing, for so long; how many are missing still."""
    until = time.monotonic() + seconds
    left = list(missing(folder, jobs, rounds))
    while left and time.monotonic() < until:
        measure(*left.pop(0))
    return len(left)


def bars(rows: list[Row]) -> Iterator[Bar]:
    near = sum(row["near"] for row in rows) / len(rows)
    inside = sum(row["inside"] for row in rows) / len(rows)
    yield Bar("cells within ±20% or ±1 point", "≥ 80%", f"{near:.0%}", near >= _NEAR)
    held = _LEAST_INSIDE <= inside <= _MOST_INSIDE
    yield Bar("held by the 80% intervals", "75 to 90%", f"{inside:.0%} of {len(rows)}", held)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--folder", type=Path, required=True, help="where runs are kept")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of each job's length")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no job after so long")
    parser.add_argument("--gpu", action="store_true", help="jobs for one GPU")
    parser.add_argument("--jobs", help="comma between (default: all)")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.share = 1, 0.2
    jobs = lever_jobs(args.share, gpu=args.gpu)
    if args.jobs:
        jobs = {name: jobs[name] for name in args.jobs.split(",")}
    left = run_missing(args.folder, jobs, args.rounds, args.seconds)
    rows = list(cells(args.folder, jobs, args.rounds))
    facts = {"cells": f"{len(rows)} cells", "missing": f"{left} runs are missing"}
    report = Report("advice", facts=facts)
    figure, yes = "{:+.1f}".format, lambda held: "yes" if held else "NO"
    columns = [
        Column("job", "job"),
        Column("cell", "levers"),
        Column("rounds", "stock/levers"),
        Column("stock", "stock ETT", "{:.1f}".format),
        Column("predicted_s", "predicted s", figure),
        Column("seconds", "won s", figure),
        Column("predicted", "predicted points", figure),
        Column("low", "80% from", figure),
        Column("high", "to", figure),
        Column("points", "won points", figure),
        Column("near", "near", yes),
        Column("inside", "inside", yes),
        Column("off", "furthest off, rank-s"),
    ]
    report.sheets = [Sheet("predicted from the stock run, and measured", columns, rows)]
    report.bars = list(bars(rows)) if rows else []
    report.show(args.json)


if __name__ == "__main__":
    main()
