"""What the Fleet page shows, as values: a template draws them, `.json` prints them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from typing import Any
from urllib.parse import urlencode

from torchett.fleet.schema import HELD_IDLE
from torchett.model.accounts import GROUPS
from torchett.model.durations import duration
from torchett.serve.fleet.filters import KEYS, LONGEST, Choice, Filters
from torchett.serve.fleet.source import FleetSource, Row

BANDS = (*GROUPS, HELD_IDLE)
_SAVING = ("checkpoint_blocked", "final_checkpoint")
_MOST_JOBS = 12
_MOST_CAUSES = 10
_MOST_MOVES = 8
_MOST_LOST = 4
_MOST_VALUES = 30
_COMPARED_DAYS = 7
_LEAST_MOVE = 0.05  # points
_CHOICES_S = 60.0  # how old the values to choose from may be


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Rank-hours of something, and its share of all."""

    name: str
    hours: float
    percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureKind:
    """All failures of one cause."""

    cause: str
    domain: str
    count: int
    hours: float
    width: float  # 0…1000: its cost beside the dearest's


@dataclass(frozen=True, slots=True, kw_only=True)
class LostJob:
    """A job and what it lost: shares by group for its bar."""

    key: str
    name: str
    state: str
    ett_percent: float
    lost_hours: float
    hours: float
    failures: int
    shares: Mapping[str, float]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """An account's share of the last days beside the days before."""

    account: str
    group: str
    before: float
    after: float
    x: float
    width: float

    @property
    def points(self) -> float:
        return self.after - self.before

    @property
    def better(self) -> bool:
        return (self.points > 0) == (self.group == "effective")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """The whole page."""

    filters: Filters
    choices: Sequence[Choice]
    ett_percent: float | None
    hours: float
    jobs: int
    live: int
    time_to_start: str
    time_to_start_worst: str
    time_to_recover: str
    recoveries: int
    saving: Amount
    unsaved: Amount
    groups: Sequence[Amount]
    lost_hours: float
    lost: Sequence[Amount]  # what took most of them
    days: Sequence[str]
    bands: Mapping[str, Sequence[float]]  # group → rank-hours a day
    failures: Sequence[FailureKind]
    worst: Sequence[LostJob]
    moved: Sequence[Moved]
    moved_points: float | None
    weeks: str  # the query that compares them day for day

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        found["filters"] = {**self.filters.labels, "days": self.filters.days}
        found["choices"] = {one.name: one.values for one in self.choices}
        return found


def fleet_view(source: FleetSource, chosen: Filters) -> FleetView:
    """All that the page shows of this part of the fleet."""
    where, params = chosen.where("day")
    daily = source.rows(
        "SELECT day, account, account_group AS band, sum(ns)::DOUBLE / 3.6e12 AS hours"
        f" FROM days WHERE {where} GROUP BY ALL ORDER BY day",
        params,
    )
    groups, accounts = _sums(daily, "band"), _sums(daily, "account")
    whole = sum(groups.values())
    lost = {name: hours for name, hours in _losses(daily).items() if hours}
    days, bands = _bands(daily, chosen)
    moved, points = _moved(daily, chosen)
    figures = _figures(source, chosen)
    return FleetView(
        filters=chosen,
        choices=_choices(source, chosen),
        ett_percent=100 * groups.get("effective", 0) / whole if whole else None,
        hours=whole,
        jobs=figures["jobs"],
        live=figures["live"],
        time_to_start=_told(figures["tts"]),
        time_to_start_worst=_told(figures["tts_worst"]),
        time_to_recover=_told(figures["ttr"]),
        recoveries=int(figures["recoveries"] or 0),
        saving=_amount("saving", sum(accounts.get(name, 0) for name in _SAVING), whole),
        unsaved=_amount("unsaved", groups.get("unsaved", 0), whole),
        groups=[_amount(name, groups[name], whole) for name in BANDS if groups.get(name)],
        lost_hours=sum(lost.values()),
        lost=[
            _amount(name, lost[name], whole)
            for name in sorted(lost, key=lambda name: -lost[name])[:_MOST_LOST]
        ],
        days=days,
        bands=bands,
        failures=_failures(source, chosen),
        worst=_worst(source, chosen),
        moved=moved,
        moved_points=points,
        weeks=_weeks(chosen),
    )


def _amount(name: str, hours: float, whole: float) -> Amount:
    return Amount(name=name, hours=hours, percent=100 * hours / whole if whole else 0.0)


def _sums(rows: Sequence[Row], key: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        found[row[key]] = found.get(row[key], 0.0) + row["hours"]
    return found


def _losses(rows: Sequence[Row]) -> dict[str, float]:
    """Rank-hours of each account but effective; all of recovery is one."""
    found: dict[str, float] = {}
    for row in rows:
        if row["band"] != "effective":
            name = "recovery" if row["band"] == "recover" else row["account"]
            found[name] = found.get(name, 0.0) + row["hours"]
    return found


def _bands(rows: Sequence[Row], chosen: Filters) -> tuple[list[str], dict[str, list[float]]]:
    """Every day, also those on which nothing ran, and rank-hours of each group on it."""
    first = chosen.since.date()
    count = (chosen.until.date() - first).days + 1
    at = {first + timedelta(days=i): i for i in range(count)}
    bands = {name: [0.0] * count for name in BANDS}
    for row in rows:
        if row["day"] in at:
            bands[row["band"]][at[row["day"]]] += row["hours"]
    days = [day.isoformat() for day in at]
    return days, {name: values for name, values in bands.items() if any(values)}


def _weeks(chosen: Filters) -> str:
    last = chosen.until.date()
    a, b = (
        f"{last - timedelta(days=n + _COMPARED_DAYS - 1)}..{last - timedelta(days=n)}"
        for n in (_COMPARED_DAYS, 0)
    )
    return urlencode({"a": a, "b": b, **chosen.labels})


def _moved(rows: Sequence[Row], chosen: Filters) -> tuple[list[Moved], float | None]:
    """Accounts of the last seven days against the seven before, the largest move first."""
    last: date = chosen.until.date()
    shares: list[dict[tuple[str, str], float]] = []
    for begin in (2 * _COMPARED_DAYS, _COMPARED_DAYS):
        lo, hi = (last - timedelta(days=n) for n in (begin - 1, begin - _COMPARED_DAYS))
        mine = [row for row in rows if lo <= row["day"] <= hi]
        whole = sum(row["hours"] for row in mine)
        if not whole:
            return [], None
        sums: dict[tuple[str, str], float] = {}
        for row in mine:
            key = (row["band"], "start again" if row["band"] == "recover" else row["account"])
            sums[key] = sums.get(key, 0.0) + 100 * row["hours"] / whole
        shares.append(sums)
    before, after = shares
    points = {key: after.get(key, 0.0) - before.get(key, 0.0) for key in {**before, **after}}
    chosen_keys = sorted(points, key=lambda key: -abs(points[key]))[:_MOST_MOVES]
    most = max(map(abs, points.values())) or 1.0
    found = []
    for group, account in chosen_keys:
        by = points[group, account]
        if abs(by) < _LEAST_MOVE:
            continue
        wide = max(500 * abs(by) / most, 2)
        found.append(
            Moved(
                account="recovery" if group == "recover" else account,
                group=group,
                before=before.get((group, account), 0.0),
                after=after.get((group, account), 0.0),
                x=round(500 - (wide if by < 0 else 0), 2),
                width=round(wide, 2),
            )
        )
    return found, points.get(("effective", "effective"))


def _figures(source: FleetSource, chosen: Filters) -> Row:
    where, params = chosen.where("ended")
    return source.rows(
        "SELECT count(*) AS jobs, count(*) FILTER (state = 'live') AS live,"
        " median(time_to_start_ns) AS tts, quantile_cont(time_to_start_ns, 0.95) AS tts_worst,"
        " sum(time_to_recover_ns)::DOUBLE / nullif(sum(recoveries), 0)::DOUBLE AS ttr,"
        f" sum(recoveries) AS recoveries FROM jobs WHERE {where}",
        params,
    )[0]


def _told(ns: float | None) -> str:
    return "–" if ns is None else duration(round(ns))


def _failures(source: FleetSource, chosen: Filters) -> list[FailureKind]:
    where, params = chosen.where("ended")
    rows = source.rows(
        "SELECT cause, domain, count(*) AS count, sum(total_ns)::DOUBLE / 3.6e12 AS hours"
        f" FROM failures WHERE {where} GROUP BY ALL ORDER BY hours DESC NULLS LAST, count DESC"
        f" LIMIT {_MOST_CAUSES}",
        params,
    )
    most = max((row["hours"] or 0 for row in rows), default=0) or 1.0
    return [
        FailureKind(**{**row, "hours": row["hours"] or 0.0},
                    width=round(1000 * (row["hours"] or 0) / most, 1))
        for row in rows
    ]  # fmt: skip


def _worst(source: FleetSource, chosen: Filters) -> list[LostJob]:
    where, params = chosen.where("ended")
    columns = ", ".join(f"{name}_ns" for name in BANDS)
    labels = ", ".join(f'"{name}"' for name in KEYS[1:])
    rows = source.rows(
        f"SELECT project, job, state, ett_percent, rank_ns, {columns}, {labels},"
        " infra_failures + scheduler_failures AS failures"
        f" FROM jobs WHERE {where} ORDER BY rank_ns - effective_ns DESC LIMIT {_MOST_JOBS}",
        params,
    )
    return [_lost(row) for row in rows]


def _lost(row: Row) -> LostJob:
    whole = max(row["rank_ns"], 1)
    return LostJob(
        key=f"{row['project']}/{row['job']}",
        name=row["job"],
        state=row["state"],
        ett_percent=row["ett_percent"],
        lost_hours=(row["rank_ns"] - row["effective_ns"]) / 3.6e12,
        hours=row["rank_ns"] / 3.6e12,
        failures=row["failures"],
        shares={name: 100 * (row[f"{name}_ns"] or 0) / whole for name in BANDS},
        labels={name: row[name][:LONGEST] for name in ("team", "model") if row[name]},
    )


def _choices(source: FleetSource, chosen: Filters) -> list[Choice]:
    """Every label that more than one value of is known, or that is chosen."""
    names = [f'"{name}"' for name in KEYS]
    sets = ", ".join(f"({name})" for name in names)
    rows = source.rows(
        f"SELECT {', '.join(names)}, sum(ns)::DOUBLE AS ns FROM days WHERE day >= ?"
        f" GROUP BY GROUPING SETS ({sets}) ORDER BY ns DESC",
        [chosen.since],
        fresh_s=_CHOICES_S,
    )
    values: dict[str, list[str]] = {name: [] for name in KEYS}
    for row in rows:
        for name in KEYS:
            known, value = values[name], row[name]
            if value is not None and len(value) <= LONGEST and len(known) < _MOST_VALUES:
                known.append(value)
    found = []
    for name in KEYS:
        mine = chosen.labels.get(name, "")
        if mine and mine not in values[name]:
            values[name].append(mine)
        if len(values[name]) > 1 or mine:
            found.append(Choice(name=name, values=values[name], chosen=mine))
    return found
