"""Whether the interval rule beats any fixed interval, played back over failures of real clusters.

    ./dev bench interval_traces --data FOLDER [--failures 10] [--clusters 400] [--jobs 25] [--json]

FOLDER is one with `traces/`: philly_status_first15k.csv.gz and helios_status_15k.csv.gz. A job's
history is what one user's jobs went through, one after the other, as if they were attempts of one
job: each runs its time, and ends in a failure where the trace says so; it is over after ten of
them. What a save blocks is not in a trace: each job gets a time between 0.1 and 60 s, evenly in its
logarithm, by its name. A cluster's history is 25 of these jobs, drawn at random from one trace.

    rule     ett's AutoInterval: it knows neither the failures nor the cost of a save beforehand
    fixed    one interval for all jobs of a cluster: 1, 2, 5 … minutes to a day
    best     the fixed interval that wastes least in this very job: known only afterwards

Waste is the time that saves block and the training that failures take. In a single job a fixed
interval that happens to be near its best one wins half of the time, by luck; a cluster has one
setting for all of its jobs.
"""

import csv
import gzip
import math
import random
import zlib
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from _table import Bar, Column, Report, Row, Sheet, options
from interval import Learner

_FIXED_MIN = (1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480, 720, 1440)
_FAILED = "Failed"
_LONGEST_S = 30 * 86400.0
_HINDSIGHT = [60 * 1.15**i for i in range(60)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One history: seconds run before each failure."""

    name: str
    blocking_s: float
    gaps_s: tuple[float, ...]


def histories(folder: Path, failures: int) -> Iterator[Played]:
    """Each user's jobs, cut after every so many failures."""
    for name in ("philly_status_first15k", "helios_status_15k"):
        for user, jobs in sorted(by_user(folder / "traces" / f"{name}.csv.gz").items()):
            gaps: list[float] = []
            since = 0.0
            for run_s, status in jobs:
                since += run_s
                if status == _FAILED:
                    gaps.append(min(since, _LONGEST_S))
                    since = 0.0
                if len(gaps) == failures:
                    yield history(f"{name}/{user}/{since}/{sum(gaps)}", gaps)
                    gaps = []


def history(name: str, gaps: Sequence[float]) -> Played:
    share = zlib.crc32(name.encode()) / 2**32
    return Played(name=name, blocking_s=0.1 * 600**share, gaps_s=tuple(gaps))


def by_user(path: Path) -> dict[str, list[tuple[float, str]]]:
    """Run time and end of each user's jobs, in the order in which they were submitted."""
    found = defaultdict[str, list[tuple[float, str]]](list)
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            found[row["user"]].append((float(row["run_s"]), row["status"]))
    return found


def fixed_waste(history: Played, interval_s: float) -> float:
    """What one interval wastes: saves block, failures take what is since the last save."""
    wasted, cycle_s = 0.0, interval_s + history.blocking_s
    for gap_s in history.gaps_s:
        saves = math.floor(gap_s / cycle_s)
        wasted += saves * history.blocking_s + gap_s - saves * cycle_s
    return wasted


def rule_waste(history: Played) -> float:
    """What the rule wastes: it begins with a guess of 8 hours, and learns."""
    learner, wasted = Learner(8 * 3600.0), 0.0
    for gap_s in history.gaps_s:
        at = 0.0
        while True:
            upto = at + learner.interval_s() + history.blocking_s
            if upto >= gap_s:
                break
            learner.saved(upto - at, history.blocking_s)
            wasted += history.blocking_s
            at = upto
        learner.failed(gap_s - at)
        wasted += gap_s - at
    return wasted


def clusters(played: Sequence[Played], count: int, jobs: int) -> list[list[int]]:
    """Which jobs each cluster has, by their place; all of a cluster are of one trace."""
    rng = random.Random(0)
    traces: dict[str, list[int]] = defaultdict(list)
    for i, history in enumerate(played):
        traces[history.name.partition("/")[0]].append(i)
    return [
        rng.choices(traces[name], k=jobs)
        for name in sorted(traces)
        for _ in range(count // len(traces))
    ]


def rows_of(played: Sequence[Played], groups: Sequence[Sequence[int]]) -> tuple[list[Row], float]:
    """A row for each fixed interval; and the rule's waste over hindsight's."""
    rule = [rule_waste(history) for history in played]
    rows = []
    for minutes in _FIXED_MIN:
        fixed = [fixed_waste(history, 60.0 * minutes) for history in played]
        wins = [ours < theirs for ours, theirs in zip(rule, fixed, strict=True)]
        won = [sum(rule[i] for i in group) < sum(fixed[i] for i in group) for group in groups]
        rows.append(
            {
                "minutes": minutes,
                "jobs": sum(wins) / len(wins),
                "clusters": sum(won) / len(won),
                "times": sum(fixed) / sum(rule),
            }
        )
    best = [min(fixed_waste(history, s) for s in _HINDSIGHT) for history in played]
    return rows, sum(rule) / sum(best)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--data", type=Path, required=True, help="a folder with traces/")
    parser.add_argument("--failures", type=int, default=10, help="of each job")
    parser.add_argument("--clusters", type=int, default=400, help="histories of clusters")
    parser.add_argument("--jobs", type=int, default=25, help="of each cluster")
    args: Namespace = parser.parse_args()
    played = list(histories(args.data, args.failures))
    if args.quick:
        played = played[::5]
    by_trace = Counter(history.name.partition("/")[0] for history in played)
    groups = clusters(played, args.clusters, args.jobs)
    rows, over_best = rows_of(played, groups)
    least = min(rows, key=lambda row: row["clusters"])
    report = Report("interval_traces", facts={"jobs": f"{dict(by_trace)}"})
    share = "{:.1%}".format
    columns = [
        Column("minutes", "fixed, minutes", "{}".format),
        Column("clusters", "rule wastes less in clusters", share),
        Column("jobs", "in single jobs", share),
        Column("times", "waste over the rule's, all jobs", "{:.2f}".format),
    ]
    report.sheets = [Sheet("the rule against one fixed interval for all", columns, rows)]
    hardest = min(row["jobs"] for row in rows)
    report.bars = [
        Bar("histories of clusters", "≥ 200", str(len(groups)), len(groups) >= 200),
        Bar(
            f"the rule wastes less than {least['minutes']} min, the hardest",
            "≥ 95% of them",
            share(least["clusters"]),
            least["clusters"] >= 0.95,
        ),
        Bar("… in single jobs, against the hardest", "–", share(hardest), None),
        Bar("the rule's waste over hindsight's, job by job", "–", f"{over_best:.2f}", None),
    ]
    report.show(args.json)


if __name__ == "__main__":
    main()
