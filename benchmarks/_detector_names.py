"""Whether the detector names what was put in: rows of real-looking jobs, changed and looked at."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from _fleets import day, fill
from _noise import DAY

from torchett.fleet.detector.budget import changes, limits
from torchett.fleet.detector.proof import AFTER, BEFORE, EARLIER, Cube, Proof, proof
from torchett.fleet.detector.series import ACCOUNT_SQL, read_series
from torchett.fleet.detector.settings import Settings
from torchett.fleet.schema import LABELS

LEARNT, WATCHED = 28 * DAY, 7 * DAY
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRows:
    """Hours of one class of jobs: rows of sums, and each job's labels."""

    hour: Any
    account: Any  # a place in `accounts`
    job: Any  # a place in each of `labels`
    ns: Any
    accounts: list[str]
    labels: dict[str, Any]

    def cube(self, since: int) -> Cube:
        """The rows around a change as the detector reads them."""
        when = np.where(self.hour >= since, AFTER,
                        np.where(self.hour >= since - WATCHED, BEFORE, EARLIER))  # fmt: skip
        kept = self.hour >= since - LEARNT
        return Cube(
            when=when[kept], account=self.account[kept], job=self.job[kept], ns=self.ns[kept],
            accounts=self.accounts, labels=self.labels, jobs=len(next(iter(self.labels.values()))),
        )  # fmt: skip

    def shares(self, accounts: Sequence[str], hours: int) -> Any:
        """Shares of these accounts, hour by hour."""
        whole, spent = np.zeros(hours), np.zeros((len(accounts), hours))
        np.add.at(whole, self.hour, self.ns)
        row = {name: i for i, name in enumerate(accounts)}
        which = np.array([row.get(name, -1) for name in self.accounts])[self.account]
        kept = which >= 0
        np.add.at(spent, (which[kept], self.hour[kept]), self.ns[kept])
        return spent / np.maximum(whole, 1e-12)

    def with_drop(self, first: int, account: str, points: float, jobs: Any) -> "ClassRows | None":
        """So many points of the class moved to an account since an hour, in these jobs."""
        accounts = [*self.accounts, *({account} - set(self.accounts))]
        after = self.hour >= first
        mine = after & jobs[self.job]
        kept = mine & (self.account == accounts.index("effective"))
        wanted = points / 100 * self.ns[after].sum()
        have = self.ns[kept].sum()
        if have < 1.5 * wanted:
            return None
        moved = np.floor(self.ns[kept] * (wanted / have)).astype(np.int64)
        ns = self.ns.copy()
        ns[kept] -= moved
        return replace(
            self,
            hour=np.concatenate([self.hour, self.hour[kept]]),
            account=np.concatenate([self.account, np.full(len(moved), accounts.index(account))]),
            job=np.concatenate([self.job, self.job[kept]]),
            ns=np.concatenate([ns, moved]),
            accounts=accounts,
        )

    def part(self, first: int, jobs: Any) -> float:
        """The part of the time since an hour that these jobs had."""
        after = self.hour >= first
        return float(self.ns[after & jobs[self.job]].sum() / max(self.ns[after].sum(), 1))


class Watched:
    """A fleet of 50 days and one time in it: its series, limits, and all rows of each class."""

    def __init__(self, fleet: Any, now: datetime) -> None:
        self.series = read_series(fleet, ("team", "model"), now, 35)
        learnt = slice(None, LEARNT)
        self.limit = limits(
            self.series.shares[:, learnt], self.series.weights[:, learnt], self.series.class_of
        )
        self.fleet, self.now = fleet, now
        self._rows: dict[int, ClassRows] = {}

    def rows(self, place: int) -> ClassRows:
        if place not in self._rows:
            self._rows[place] = self._read(place)
        return self._rows[place]

    def _read(self, place: int) -> ClassRows:
        chosen, _ = self.series.named(place * len(self.series.accounts))
        others = [name for name in LABELS if name not in chosen]
        named_columns = ", ".join(f'any_value(j."{name}") AS "{name}"' for name in others)
        table = self.fleet.query(
            f"SELECT h.job, date_diff('hour', ?::TIMESTAMP, h.hour) AS at, {ACCOUNT_SQL} AS name,"
            f" {named_columns}, sum(h.ns)::BIGINT AS ns FROM job_hours h JOIN jobs j"
            " USING (project, job) WHERE h.hour >= ? AND h.hour < ?"
            f"{''.join(f' AND j.{name} = ?' for name in chosen)} GROUP BY ALL",
            [self.series.first, self.series.first, self.now, *chosen.values()],
        )
        _, first, job = np.unique(
            np.asarray(table["job"].to_pylist()), return_index=True, return_inverse=True
        )
        accounts, account = np.unique(np.asarray(table["name"].to_pylist()), return_inverse=True)
        return ClassRows(
            hour=table["at"].to_numpy(), account=account, job=job, ns=table["ns"].to_numpy(),
            accounts=accounts.tolist(),
            labels={
                name: np.asarray(table[name].take(first).to_pylist(), dtype=object)
                for name in others
            },
        )  # fmt: skip


def named(trials: int) -> list[Row]:
    """Drops of 1, 2, 5 points put into one label's jobs of a class: noticed, and named right?

    From the whole detector, from the rows on: a series of the class must alarm within the week;
    account and label are those that its proof names, with the begin that it found. In a fourth of
    the trials beside them, all jobs of the class lose as much: there no label may be named.
    """
    rng = np.random.default_rng(5)
    rows = {points: Counter[str]() for points in (1.0, 2.0, 5.0)}
    with tempfile.TemporaryDirectory() as folder:
        fleet = fill(Path(folder), end_s=day("2026-11-19"), days=50, jobs=12_000, seed=11, live=0)
        for back in range(6):
            watched = Watched(fleet, datetime(2026, 11, 18) - timedelta(days=2 * back))
            for points, counts in rows.items():
                while counts["trials"] < trials * (back + 1) // 6:
                    counts += _trial(watched, points, rng)
        fleet.close()
    return [
        {"points": points, "trials": n["trials"], "noticed": n["noticed"] / n["trials"],
         "account": n["account"] / max(n["noticed"], 1), "both": n["both"] / max(n["noticed"], 1),
         "nobody": n["nobody"] / max(n["noticed"], 1),
         "spared": n["spared"] / max(n["in_all"], 1)}
        for points, n in rows.items()
    ]  # fmt: skip


def _trial(watched: Watched, points: float, rng: np.random.Generator) -> Counter[str]:
    series = watched.series
    place = int(rng.integers(len(series.classes)))
    rows = watched.rows(place)
    first = len(series.weights[0]) - int(float(rng.uniform(1, 5)) * 24)
    label = str(rng.choice(["torch", "cluster", "queue", "image"]))
    account = str(rng.choice(["recompile", "data_wait", "checkpoint_blocked", "other_in_loop"]))
    after = np.unique(rows.job[rows.hour >= first])
    known = sorted({value for value in rows.labels[label][after] if value is not None})
    if account not in series.accounts or len(known) < 2 or (rows.hour >= first).all():
        return Counter()
    value = known[int(rng.integers(len(known)))]
    jobs = rows.labels[label] == value
    if not 0.05 < rows.part(first, jobs) < 0.8:
        return Counter()
    said = _looked(watched, place, rows.with_drop(first, account, points, jobs), first)
    if said is None:
        return Counter()
    proved, changed = said
    found = Counter(trials=1)
    if proved is not None:
        culprit = proved.culprit
        same = proved.account == account
        right = culprit is not None and (
            (culprit.label, culprit.value) == (label, value)
            or _same_jobs(changed, first, jobs, changed.labels[culprit.label] == culprit.value)
        )
        found += Counter(noticed=1, account=int(same), both=int(same and right),
                         nobody=int(culprit is None))  # fmt: skip
    if rng.random() < 0.25:
        every = np.ones(len(jobs), dtype=bool)
        said = _looked(watched, place, rows.with_drop(first, account, points, every), first)
        if said is not None and said[0] is not None:
            found += Counter(in_all=1, spared=int(said[0].culprit is None))
    return found


def _looked(
    watched: Watched, place: int, changed: ClassRows | None, first: int
) -> tuple[Proof | None, ClassRows] | None:
    """What the detector says of a changed class; None within: it noticed nothing."""
    if changed is None:
        return None
    series = watched.series
    mine = slice(place * len(series.accounts), (place + 1) * len(series.accounts))
    weights = series.weights[mine]
    shares = changed.shares(series.accounts, weights.shape[1])
    found = [one for one in changes(shares, weights, watched.limit) if one.at >= first]
    if not found:
        return None, changed
    since = min(one.since for one in found if one.at == found[0].at)
    proved = proof(changed.cube(since), [series.accounts[one.series] for one in found])
    if proved is not None and proved.drop < Settings().least_points:
        proved = None  # as the detector does: not worth an alarm
    return proved, changed


def _same_jobs(rows: ClassRows, first: int, a: Any, b: Any) -> bool:
    """Whether two sets of jobs had the same time after the change, to a tenth."""
    return rows.part(first, a & b) > 0.9 * rows.part(first, a | b)
