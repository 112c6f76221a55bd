"""Regressions: classes of jobs that train less than they used to, each with its proof."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from torchett.fleet.detector.budget import (
    LEARNT_DAYS,
    WATCHED_DAYS,
    Found,
    Limits,
    changes,
    limits,
)
from torchett.fleet.detector.notice import Notice
from torchett.fleet.detector.proof import AFTER, BEFORE, EARLIER, Cube, Proof, proof
from torchett.fleet.detector.sentence import sentence
from torchett.fleet.detector.series import ACCOUNT_SQL, Series, read_series
from torchett.fleet.detector.settings import Settings
from torchett.fleet.fleet import Fleet
from torchett.fleet.schema import LABELS

RULE = "regression"
_PAGE_POINTS = 2.0


@dataclass(slots=True)
class Detector:
    """Looks at a fleet again and again; limits are found once a day."""

    settings: Settings
    _limits: Limits | None = None
    _day: datetime | None = None

    def look(self, fleet: Fleet, now: datetime) -> list[Notice]:
        """A notice for each class whose effective time fell in the last week."""
        series = read_series(fleet, self.settings.classes, now, LEARNT_DAYS + WATCHED_DAYS)
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        if self._limits is None or self._day != midnight:
            learnt = slice(None, LEARNT_DAYS * 24)
            self._limits = limits(
                series.shares[:, learnt],
                series.weights[:, learnt],
                series.class_of,
                budget=self.settings.budget,
            )
            self._day = midnight
        found = changes(series.shares, series.weights, self._limits)
        notices = [self._notice(fleet, series, mine, now) for mine in _by_class(series, found)]
        return [one for one in notices if one is not None]

    def _notice(
        self, fleet: Fleet, series: Series, mine: Sequence[Found], now: datetime
    ) -> Notice | None:
        labels, _ = series.named(mine[0].series)
        since = series.hour(min(one.since for one in mine if one.at == mine[0].at))
        cube = read_cube(fleet, series.labels, labels, since, now)
        found = proof(cube, [series.named(one.series)[1] for one in mine])
        if found is None or float(found.drop) < self.settings.least_points:
            return None
        return Notice(
            rule=RULE,
            severity="page" if float(found.drop) >= _PAGE_POINTS else "warn",
            text=sentence(labels, since, found),
            value=found.after,
            expected=found.before,
            project=labels.get("project"),
            subject=labels,
            details={"since": f"{since.isoformat()}Z", **_details(found)},
        )


def _by_class(series: Series, found: Sequence[Found]) -> list[list[Found]]:
    """The changes of each class, the earliest noticed first."""
    classes: dict[int, list[Found]] = {}
    for one in found:
        classes.setdefault(int(series.class_of[one.series]), []).append(one)
    return list(classes.values())


def _details(found: Proof) -> dict[str, Any]:
    culprit = found.culprit
    return {
        "noticed_in": found.account,
        "drop_points": float(found.drop),
        "contributions": {name: float(points) for name, points in found.contributions},
        "culprit": None
        if culprit is None
        else {
            "label": culprit.label,
            "value": culprit.value,
            "points": culprit.points,
            "points_without": culprit.rest,
            "share_of_time": culprit.share,
            "new": culprit.new,
        },
        "suspects": list(found.suspects),
    }


def read_cube(
    fleet: Fleet,
    class_labels: Sequence[str],
    labels: Mapping[str, str],
    since: datetime,
    now: datetime,
) -> Cube:
    """The time of a class of jobs since a change, in the week before it, and in those earlier."""
    others = [name for name in LABELS if name not in class_labels]
    clauses, params = [], []
    for name in class_labels:
        if name in labels:
            clauses.append(f'j."{name}" = ?')
            params.append(labels[name])
        else:
            clauses.append(f'j."{name}" IS NULL')
    first, week = since - timedelta(days=LEARNT_DAYS), since - timedelta(days=WATCHED_DAYS)
    columns = ", ".join(f'any_value(j."{name}") AS "{name}"' for name in others)
    table = fleet.query(
        f"SELECT h.project, h.job, CASE WHEN h.hour >= ? THEN {AFTER} WHEN h.hour >= ?"
        f" THEN {BEFORE} ELSE {EARLIER} END AS at, {ACCOUNT_SQL} AS name, {columns},"
        " sum(h.ns)::BIGINT AS ns FROM job_hours h JOIN jobs j USING (project, job)"
        " WHERE h.hour >= ? AND h.hour < ? AND j.ended >= ?"
        f"{''.join(f' AND {clause}' for clause in clauses)} GROUP BY ALL",
        [since, week, first, now, first, *params],
        named=fleet.segments_since(first),
    )
    names, keys = table["name"].to_pylist(), zip(*_lists(table, "project", "job"), strict=True)
    accounts = sorted(set(names))
    place = {name: i for i, name in enumerate(accounts)}
    jobs: dict[tuple[str, str], int] = {}
    job = [jobs.setdefault(key, len(jobs)) for key in keys]
    _, firsts = np.unique(np.asarray(job, dtype=np.int64), return_index=True)
    return Cube(
        when=np.asarray(table["at"].to_pylist(), dtype=np.int64),
        account=np.asarray([place[name] for name in names], dtype=np.int64),
        job=np.asarray(job, dtype=np.int64),
        ns=np.asarray(table["ns"].to_pylist(), dtype=np.int64),
        accounts=accounts,
        labels={
            name: np.asarray(table[name].take(firsts).to_pylist(), dtype=object) for name in others
        },
        jobs=len(jobs),
    )


def _lists(table: Any, *names: str) -> list[list[Any]]:
    return [table[name].to_pylist() for name in names]
