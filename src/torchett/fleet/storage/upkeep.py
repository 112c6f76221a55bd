"""What keeps a fleet small: joining small segments, and removing what is too old.

Only run folders that lie in the fleet's own folder are ever removed: those that were shipped or
imported. Rows stay when their run folder goes; they cannot be rolled up anew then.
"""

import shutil
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchett.fleet.label_sums import LabelSums
from torchett.fleet.state import PUT_SEGMENT
from torchett.fleet.storage.segments import LIVE, first_day_of, last_day_of, week_of
from torchett.fleet.windows import now_utc

if TYPE_CHECKING:
    from torchett.fleet.fleet import Fleet

MOST_SEGMENTS = 12  # of a day, before they are joined
_SETTLED = timedelta(days=7)  # after its last day, a week becomes one segment
Named = tuple[str, str]


@dataclass(slots=True, kw_only=True)
class Removed:
    """What retention removed, or would."""

    runs: int = 0
    run_bytes: int = 0
    jobs: int = 0
    segments: int = 0
    files: int = 0


def compact(
    fleet: "Fleet",
    now: datetime | None = None,
    *,
    most: int = MOST_SEGMENTS,
    most_weeks: int | None = None,
) -> int:
    """Join small segments, and sum by labels what is new; how many were joined.

    A day's are joined when there are more than `most`. A week that has been over for a week becomes
    one segment, and again when more than `most` have come since; at most `most_weeks` a call.
    """
    limit = f"{(now or now_utc()) - _SETTLED:%Y-%m-%d}"
    days: dict[str, list[Named]] = {}
    weeks: dict[str, list[Named]] = {}
    for row in fleet.state.rows("SELECT day, name FROM segments ORDER BY day"):
        day = row["day"]
        settled = day != LIVE and last_day_of(week_of(day)) < limit
        group = weeks.setdefault(week_of(day), []) if settled else days.setdefault(day, [])
        group.append((day, row["name"]))
    due = [(day, named) for day, named in days.items() if len(named) > most]
    old = [
        (week, named)
        for week, named in sorted(weeks.items(), reverse=True)
        if len(named) > most or all(day != week for day, _ in named)
    ]
    count = sum(_join(fleet, period, named) for period, named in due + old[:most_weeks])
    LabelSums(fleet).update()
    return count


def _join(fleet: "Fleet", period: str, named: list[Named]) -> int:
    """Make one segment of several; how many they were, 0 if one was replaced meanwhile."""
    made = fleet.segments.join(named, period, durable=period != LIVE)
    with fleet.state.change() as db:
        sql = "SELECT name, jobs, last_day FROM segments"
        known = {row["name"]: row for row in fleet.state.rows(sql)}
        if not all(name in known for _, name in named):
            return 0
        rows = [known[name] for _, name in named]
        last = (
            None if any(r["last_day"] is None for r in rows) else max(r["last_day"] for r in rows)
        )
        db.executemany("DELETE FROM segments WHERE name = ?", [(name,) for _, name in named])
        db.execute(PUT_SEGMENT, (made, period, sum(row["jobs"] for row in rows), last))
    return len(named)


def retain(
    fleet: "Fleet",
    now: datetime,
    *,
    runs_days: float | None = None,
    rows_days: float | None = None,
    dry_run: bool = False,
) -> Removed:
    """Remove run folders of jobs that ended `runs_days` ago, and rows of `rows_days` ago."""
    removed = Removed()
    if runs_days is not None:
        limit = f"{now - timedelta(days=runs_days):%Y-%m-%d}"
        _remove_runs(fleet, limit, removed, dry_run)
    if rows_days is not None:
        limit = f"{now - timedelta(days=rows_days):%Y-%m-%d}"
        _remove_rows(fleet, limit, removed, dry_run)
    if not dry_run:
        named = {row["name"] for row in fleet.state.rows("SELECT name FROM segments")}
        removed.files = fleet.segments.remove_unnamed(named)
    return removed


def _remove_runs(fleet: "Fleet", limit: str, removed: Removed, dry_run: bool) -> None:
    sql = "SELECT path FROM jobs WHERE NOT live AND last_day < ? AND path IS NOT NULL"
    for row in fleet.state.rows(sql, limit):
        path = Path(row["path"])
        if not fleet.holds(path) or not path.is_dir():
            continue
        removed.runs += 1
        removed.run_bytes += sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
        if not dry_run:
            shutil.rmtree(path)


def _remove_rows(fleet: "Fleet", limit: str, removed: Removed, dry_run: bool) -> None:
    """Whole periods only: their jobs go when the last of them ended before the limit."""
    sql = "SELECT first_day, max(last_day) AS last FROM jobs WHERE NOT live GROUP BY first_day"
    ends = {row["first_day"]: row["last"] for row in fleet.state.rows(sql)}
    segments = fleet.state.rows("SELECT name, day, jobs FROM segments WHERE day != ?", LIVE)
    periods = {row["day"] for row in segments}
    groups: dict[str, list[Any]] = {}
    for row in segments:  # a week, and days of it that came afterwards, go together
        week = week_of(row["day"])
        groups.setdefault(week if week in periods else row["day"], []).append(row)
    for period, rows in groups.items():
        first, last = first_day_of(period), last_day_of(period)
        days = [day for day in ends if first <= day <= last]
        if last >= limit or any(ends[day] >= limit for day in days):
            continue
        removed.jobs += sum(row["jobs"] for row in rows)
        removed.segments += len(rows)
        if not dry_run:
            with fleet.state.change() as db:
                db.executemany("DELETE FROM segments WHERE name = ?", [(r["name"],) for r in rows])
                sql = "DELETE FROM jobs WHERE NOT live AND first_day BETWEEN ? AND ?"
                db.execute(sql, [first, last])
