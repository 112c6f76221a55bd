"""Hourly shares of accounts as real jobs make them: arrivals, sizes and lengths from Philly.

20 classes (ten virtual clusters × two models) × 40 accounts over about ten weeks; eight weeks of
arrivals lie over each other, so that a class has tens of jobs. When jobs begin, how many GPUs they
hold and how long are the trace's; how a job splits its time is drawn once for each, around a habit
of its class. So the noise of a series is that of jobs that come and go. Without the traces: drawn.
"""

import csv
import gzip
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
from _fleets import TRACES

Floats = npt.NDArray[np.float64]
HOUR, DAY = 3600, 24
CLASSES, ACCOUNTS = 20, 40
COPIES = 8
_STARTS, _EVENTS = (
    14,
    4,
)  # of the accounts: at a job's begin, and at failures; the rest: in its loop


@dataclass(frozen=True, slots=True)
class Noise:
    """shares: classes × accounts × hours, each of all the class's time; weights: GPU-hours."""

    shares: Floats
    weights: Floats
    origin: str

    def weeks(self, count: int, rng: np.random.Generator, block: int = 2) -> Floats:
        """Hours of so many weeks as indices: blocks of whole days, drawn with replacement."""
        days, need = self.weights.shape[1] // DAY, 7 * count
        picked: list[int] = []
        while len(picked) < need:
            first, length = int(rng.integers(days)), int(rng.geometric(1 / block))
            picked += [(first + i) % days for i in range(length)]
        hours = np.array(picked[:need])[:, None] * DAY + np.arange(DAY)
        return hours.ravel()


def noise(seed: int = 7) -> Noise:
    """The hourly shares of all classes and accounts."""
    rng = np.random.default_rng(seed)
    begin, gpus, run, group, origin = _jobs(rng)
    hours = int(begin.max() // (7 * DAY * HOUR)) * 7 * DAY
    begin, gpus, run, group = _laid_over(begin, gpus, run, group, hours * HOUR)
    job, hour, held = _hours(begin, run, hours)
    weight = held * gpus[job]
    whole = _sum(group[job], hour, weight, hours)
    shares = np.zeros((CLASSES, ACCOUNTS, hours))
    for account in range(ACCOUNTS):
        if account < _STARTS:
            took = rng.lognormal(np.log(rng.uniform(4, 60)), 0.5, len(begin))
            took = np.minimum(took, run) * gpus
            spent = _sum(group, (begin // HOUR).astype(int), took, hours)
        elif account < _STARTS + _EVENTS:
            rate = rng.uniform(0.5, 2) / (6 * 86400)
            struck = rng.poisson(weight * rate)
            spent = _sum(group[job], hour, struck * rng.uniform(60, 900, len(job)), hours)
        else:
            habit = rng.uniform(0.3, 3.0, CLASSES) / 100
            share = habit[group] * rng.lognormal(0, 0.3, len(begin))
            spent = _sum(
                group[job], hour, weight * share[job] * rng.lognormal(0, 0.1, len(job)), hours
            )
        shares[:, account] = np.minimum(spent / np.maximum(whole, 1), 1.0)
    return Noise(shares, whole / HOUR, origin)


def _laid_over(
    begin: Floats, gpus: Floats, run: Floats, group: npt.NDArray[np.int64], period: float
) -> tuple[Floats, Floats, Floats, npt.NDArray[np.int64]]:
    """The same arrivals several times, each copy some weeks later: a class of tens of jobs."""
    begins = [(begin + i * 7 * DAY * HOUR) % period for i in range(COPIES)]
    return np.concatenate(begins), *(np.tile(x, COPIES) for x in (gpus, run, group))  # type: ignore[return-value]


def _jobs(rng: np.random.Generator) -> tuple[Floats, Floats, Floats, npt.NDArray[np.int64], str]:
    path = TRACES / "philly_passed_jobs.csv.gz"
    if not path.exists():
        count = 60_000
        begin = np.sort(rng.uniform(0, 75 * 86400, count))
        gpus = rng.choice([1, 2, 4, 8, 16, 32], count, p=[0.6, 0.1, 0.1, 0.15, 0.03, 0.02])
        run = np.minimum(rng.lognormal(8, 1.6, count), 4 * 86400)
        return begin, gpus.astype(float), run, rng.integers(0, CLASSES, count), "drawn"
    with gzip.open(path, "rt") as file:
        rows = list(csv.DictReader(file))
    vcs: dict[str, int] = {}
    for row in rows:
        vcs[row["vc"]] = vcs.get(row["vc"], 0) + 1
    largest = sorted(vcs, key=lambda vc: -vcs[vc])[: CLASSES // 2]
    place = {vc: i for i, vc in enumerate(largest)}
    mine = [row for row in rows if row["vc"] in place]
    at = np.array([_epoch(row["submit_time"]) for row in mine])
    order = np.argsort(at)
    order = order[at[order] > np.quantile(at, 0.05)]  # before, few jobs are in the trace
    mine = [mine[i] for i in order]
    begin = at[order] - at[order[0]]
    gpus = np.array([float(row["gpus"]) for row in mine])
    run = np.minimum([float(row["run_s"]) for row in mine], 4 * 86400)
    group = np.array([2 * place[row["vc"]] for row in mine]) + rng.integers(0, 2, len(mine))
    return begin, gpus, run, group, "Philly"


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def _hours(
    begin: Floats, run: Floats, hours: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats]:
    """Each job cut at full hours: job, hour, seconds."""
    first = (begin // HOUR).astype(np.int64)
    last = ((begin + run) // HOUR).astype(np.int64)
    count = last - first + 1
    job = np.repeat(np.arange(len(begin)), count)
    hour = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + first[job]
    lo = np.maximum(begin[job], hour * HOUR)
    hi = np.minimum(begin[job] + run[job], (hour + 1) * HOUR)
    kept = (hour < hours) & (hi > lo)
    return job[kept], hour[kept], (hi - lo)[kept]


def _sum(
    group: npt.NDArray[np.int64], hour: npt.NDArray[np.int64], amount: Floats, hours: int
) -> Floats:
    flat = np.bincount(group * hours + hour, amount, CLASSES * hours)
    return flat.reshape(CLASSES, hours)
