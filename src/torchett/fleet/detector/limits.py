"""Limits that people set: live jobs that hang or save nothing durable, classes that are over one.

A limit of 0 is not watched. What is over a limit is one notice for each job or class.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from torchett.fleet.detector.notice import Notice
from torchett.fleet.detector.sentence import subject
from torchett.fleet.detector.settings import LimitSettings, Settings
from torchett.fleet.fleet import Fleet

_SAVING = "('checkpoint_blocked', 'final_checkpoint')"
_LEAST_HOURS = 1.0  # rank-hours of a class in a day, below which its shares say nothing


def over_limits(fleet: Fleet, settings: Settings, now: datetime) -> list[Notice]:
    """All that is over a limit now."""
    limits = settings.limits
    found = [*_live_jobs(fleet, limits, now)]
    found += _shares(fleet, settings, now)
    found += _times(fleet, settings, now)
    return found


def _live_jobs(fleet: Fleet, limits: LimitSettings, now: datetime) -> Iterator[Notice]:
    rows = fleet.query(
        "SELECT project, job, ended, ranks, at_risk_ns, time_to_start_ns, last_step FROM jobs"
        " WHERE state = 'live'"
    ).to_pylist()
    stalled = _stalled(fleet, limits, now) if limits.stalled_s and rows else {}
    for row in rows:
        key = row["project"], row["job"]
        silent = (now - row["ended"]).total_seconds()
        risk = (row["at_risk_ns"] or 0) / 1e9 / max(row["ranks"] or 1, 1)
        if limits.silent_s and silent > limits.silent_s:
            text = f"job {row['job']} gave no sign of life for {_time(silent)}"
            yield _of_job("silent", key, text, silent, limits.silent_s, "page")
        elif key in stalled:
            text = f"job {row['job']} has not trained for {_time(stalled[key])}: does it hang?"
            yield _of_job("stalled", key, text, stalled[key], limits.stalled_s, "page")
        if limits.at_risk_s and risk > limits.at_risk_s:
            text = (
                f"job {row['job']}: {_time(risk)} of training are in no durable checkpoint:"
                " are saves failing?"
            )
            yield _of_job("not_durable", key, text, risk, limits.at_risk_s, "page")


def _stalled(fleet: Fleet, limits: LimitSettings, now: datetime) -> dict[tuple[str, str], float]:
    """Live jobs that held hardware for so long without training, by whole hours."""
    since = now - timedelta(seconds=limits.stalled_s)
    rows = fleet.query(
        "SELECT h.project, h.job, max(h.hour) FILTER (h.account_group = 'effective') AS last,"
        " sum(h.ns) FILTER (h.account_group IN ('in_loop', 'unattributed') AND h.hour >= ?)"
        " AS held FROM job_hours h JOIN jobs j USING (project, job)"
        " WHERE j.state = 'live' AND h.hour >= ? AND j.time_to_start_ns IS NOT NULL"
        " GROUP BY ALL",
        [since - timedelta(hours=1), now - timedelta(days=7)],
    ).to_pylist()
    found = {}
    for row in rows:
        if row["last"] is None or not row["held"]:
            continue
        quiet = (now - row["last"] - timedelta(hours=1)).total_seconds()
        if quiet > limits.stalled_s:
            found[row["project"], row["job"]] = quiet
    return found


def _of_job(
    rule: str, key: tuple[str, str], text: str, value: float, limit: float, severity: Any
) -> Notice:
    return Notice(
        rule=rule,
        severity=severity,
        text=f"{text} (limit {_time(limit)}).",
        value=value,
        expected=limit,
        project=key[0],
        job=key[1],
    )


def _shares(fleet: Fleet, settings: Settings, now: datetime) -> Iterator[Notice]:
    """Classes that spent too much of the last day saving, lost, or held without a process."""
    limits, columns = settings.limits, _columns(settings)
    rows = fleet.query(
        f"SELECT {columns} sum(ns)::DOUBLE AS whole,"
        " sum(ns) FILTER (account_group = 'unsaved')::DOUBLE AS unsaved,"
        f" sum(ns) FILTER (account IN {_SAVING})::DOUBLE AS saving,"
        " sum(ns) FILTER (account_group = 'held_idle')::DOUBLE AS held_idle"
        " FROM hours WHERE hour >= ? AND hour < ? GROUP BY ALL",
        [now - timedelta(days=1), now],
    ).to_pylist()
    wanted = {
        "unsaved": (limits.unsaved_percent, "was trained and lost"),
        "saving": (limits.saving_percent, "went into saving"),
        "held_idle": (limits.held_idle_percent, "was held without any process"),
    }
    for row in rows:
        if row["whole"] < _LEAST_HOURS * 3.6e12:
            continue
        for rule, (limit, said) in wanted.items():
            percent = 100 * (row[rule] or 0.0) / row["whole"]
            if limit and percent > limit:
                labels = _labels(row, settings)
                text = f"{percent:.1f}% of the time of {subject(labels)} {said} in the last day"
                yield _of_class(rule, labels, f"{text} (limit {limit:g}%).", percent, limit)


def _times(fleet: Fleet, settings: Settings, now: datetime) -> Iterator[Notice]:
    """Classes whose jobs of the last day began or went on too late."""
    limits, columns = settings.limits, _columns(settings)
    if not (limits.time_to_start_s or limits.time_to_recover_s):
        return
    rows = fleet.query(
        f"SELECT {columns} median(time_to_start_ns) / 1e9 AS time_to_start,"
        " sum(time_to_recover_ns)::DOUBLE / nullif(sum(recoveries), 0)::DOUBLE / 1e9"
        " AS time_to_recover FROM jobs WHERE ended >= ? GROUP BY ALL",
        [now - timedelta(days=1)],
    ).to_pylist()
    wanted = {
        "time_to_start": (limits.time_to_start_s, "The median Time to Start"),
        "time_to_recover": (limits.time_to_recover_s, "The mean Time to Recover"),
    }
    for row in rows:
        for rule, (limit, said) in wanted.items():
            value = row[rule]
            if limit and value is not None and value > limit:
                labels = _labels(row, settings)
                text = f"{said} of {subject(labels)} was {_time(value)} in the last day"
                yield _of_class(rule, labels, f"{text} (limit {_time(limit)}).", value, limit)


def _columns(settings: Settings) -> str:
    return "".join(f'"{name}", ' for name in settings.classes)


def _labels(row: dict[str, Any], settings: Settings) -> dict[str, str]:
    return {name: row[name] for name in settings.classes if row[name] is not None}


def _of_class(rule: str, labels: dict[str, str], text: str, value: float, limit: float) -> Notice:
    return Notice(
        rule=rule,
        severity="warn",
        text=text,
        value=value,
        expected=limit,
        project=labels.get("project"),
        subject=labels,
    )


def _time(s: float) -> str:
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if s >= size:
            return f"{s / size:.1f} {unit}".replace(".0 ", " ")
    return f"{s:.0f} s"
