"""A fleet: one folder with the ledgers of many jobs as rows, and the SQL that reads them.

fleet = Fleet.open("ett-fleet")
fleet.roll_up(["ett-runs/gpt"], project="research")
fleet.query("SELECT team, sum(effective_ns) / sum(rank_ns) FROM jobs GROUP BY team")

ett-fleet/runs/PROJECT/JOB/    run folders that were shipped here
ett-fleet/rows/…               Parquet: see segments.py
ett-fleet/fleet.db             SQLite: see state.py
"""

import json
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from torchett.fleet.intake.rollup import roll_up, sources_of
from torchett.fleet.query import MEMORY, SECONDS, Params, ask, batches, open_views
from torchett.fleet.rows import JobRows, days_of
from torchett.fleet.schema import ALERTS, LAYOUT
from torchett.fleet.state import PUT_SEGMENT, State
from torchett.fleet.storage.segments import (
    LIVE,
    Segments,
    first_day_of,
    last_day,
    last_day_of,
    schema_of,
    tables_of,
    week_of,
    with_days,
    without_jobs,
)
from torchett.model.errors import RunError

DEFAULT_PROJECT = "default"
_OPEN = 4  # connections that are kept, each to a set of segments
Named = tuple[str, str]  # a segment: day and name


def fleet_folder(env: Mapping[str, str]) -> Path:
    """$ETT_FLEET, else ./ett-fleet."""
    return Path(env.get("ETT_FLEET") or "ett-fleet")


class Fleet:
    """An open fleet folder. Not shared by threads: each opens its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.state = State(self.folder / "fleet.db")
        self.segments = Segments(self.folder / "rows")
        self._views: dict[object, duckdb.DuckDBPyConnection] = {}

    @staticmethod
    def open(folder: str | os.PathLike[str] | None = None, *, make: bool = True) -> "Fleet":
        """The fleet in this folder ($ETT_FLEET without one), made if it is not there."""
        path = fleet_folder(os.environ) if folder is None else Path(folder)
        if not make and not (path / "fleet.db").exists():
            raise RunError(f"{path}: expected a fleet, found none: set ETT_FLEET or give --fleet")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{path}: not writable: {error.strerror}") from None
        return Fleet(path)

    def close(self) -> None:
        for db in self._views.values():
            db.close()
        self._views.clear()
        self.state.close()

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run_folder(self, project: str, job: str) -> Path:
        """Where the run folder of a job lies that was shipped here."""
        return self.folder / "runs" / project / job

    def holds(self, path: Path) -> bool:
        """Whether a run folder lies here because it was shipped or imported."""
        return path.is_relative_to(self.folder / "runs")

    # Reading ---------------------------------------------------------------------------------

    def query(
        self,
        sql: str,
        params: Params = (),
        *,
        seconds: float = SECONDS,
        memory: str = MEMORY,
        named: Sequence[Named] | None = None,
    ) -> pa.Table:
        """The rows that one SELECT over the views of `schema.py` finds (in these segments)."""
        return ask(self._open(named, memory), sql, params, seconds)

    def batches(
        self, sql: str, params: Params = (), *, seconds: float = SECONDS, memory: str = MEMORY
    ) -> AbstractContextManager[pa.RecordBatchReader]:
        """As `query`, a batch of rows at a time."""
        return batches(self._open(None, memory), sql, params, seconds)

    def recorded_slurm_jobs(self) -> set[str]:
        """The numbers of Slurm's jobs whose runs recorded themselves."""
        sql = "SELECT json_extract_string(labels, '$.slurm_job') AS n FROM jobs"
        found = self.query(f"{sql} WHERE source != 'sacct' AND labels LIKE '%slurm_job%'")
        return {row["n"] for row in found.to_pylist()}

    def _open(self, named: Sequence[Named] | None, memory: str) -> duckdb.DuckDBPyConnection:
        """A connection to the views, kept while the segments and alerts are the same."""
        if named is None:
            named = self._named("SELECT day, name FROM segments ORDER BY day, name")
        alerts = self.state.rows(
            "SELECT count(*), max(id), count(closed_s), total(value) FROM alerts"
        )
        key = (frozenset(named), tuple(alerts[0]), memory)
        db = self._views.pop(key, None)
        if db is None:
            sql = "SELECT 1 FROM segments WHERE layout IS NOT ? LIMIT 1"
            mixed = self.state.one(sql, LAYOUT) is not None
            db = open_views(self.segments, named, self._alerts(), memory, mixed=mixed)
            weakref.finalize(self, db.close)  # DuckDB complains of one that is open at exit
        self._views[key] = db  # the last one is the newest
        while len(self._views) > _OPEN:
            self._views.pop(next(iter(self._views))).close()
        return db

    def _named(self, sql: str, *values: Any) -> list[Named]:
        return [(row["day"], row["name"]) for row in self.state.rows(sql, *values)]

    def newest_segments(self, most: int) -> list[Named]:
        """The segments that hold the jobs that began last, and all live ones."""
        rows = self.state.rows("SELECT day, name, jobs FROM segments WHERE day != ?", LIVE)
        found, jobs, since = (
            self._named("SELECT day, name FROM segments WHERE day = ?", LIVE),
            0,
            "",
        )
        for row in sorted(rows, key=lambda row: last_day_of(row["day"]), reverse=True):
            if jobs >= most and last_day_of(row["day"]) < since:
                break
            first = first_day_of(row["day"])
            found.append((row["day"], row["name"]))
            jobs, since = jobs + row["jobs"], min(since or first, first)
        return found

    def segments_since(self, begin: datetime | None) -> list[Named]:
        """The segments with rows of that time or later."""
        if begin is None:
            return self._named("SELECT day, name FROM segments ORDER BY day, name")
        sql = "SELECT day, name FROM segments WHERE day = ? OR coalesce(last_day >= ?, 1)"
        return self._named(f"{sql} ORDER BY day, name", LIVE, f"{begin:%Y-%m-%d}")

    def segments_of(self, project: str, job: str) -> list[Named]:
        """The segments that may hold the rows of one job."""
        row = self.state.one(
            "SELECT live, first_day FROM jobs WHERE project = ? AND job = ?", project, job
        )
        if row is None or not row["first_day"]:
            return []
        return self._named(_IN_PERIODS, *_periods(row["live"], row["first_day"]))

    def _alerts(self) -> pa.Table:
        columns = [f"{name}_s" if name in ("opened", "closed") else name for name in ALERTS.names]
        rows = self.state.rows(f"SELECT {', '.join(columns)} FROM alerts ORDER BY id")
        shown = []
        for row in rows:
            one = dict(zip(ALERTS.names, row, strict=True))
            for name in ("opened", "closed"):
                one[name] = None if one[name] is None else int(one[name] * 1e6)
            shown.append(one)
        schema = schema_of(ALERTS)
        return pa.Table.from_pylist(shown, schema) if shown else pa.Table.from_batches([], schema)

    # Writing ---------------------------------------------------------------------------------

    def roll_up(
        self,
        runs: Iterable[str | os.PathLike[str]],
        *,
        project: str = DEFAULT_PROJECT,
        labels: Mapping[str, str] | None = None,
    ) -> int:
        """Read these run folders and keep their rows, in place of older ones; how many jobs."""
        sources = sources_of(map(Path, runs), project, labels)
        done = roll_up(self, sources, again=True)
        if done.errors:
            raise RunError(done.errors[0])
        return done.jobs

    def put(self, rows: Sequence[JobRows]) -> None:
        """Keep these jobs' rows in place of any that the fleet has of them: all or nothing."""
        if not rows:
            return
        keys = {(one.job["project"], one.job["job"]) for one in rows}
        with self.state.change() as db:
            old, kept = [], []
            for day, name, others in self._segments_with(keys):
                old.append(name)
                if others:
                    whole = with_days(without_jobs(self.segments.read(day, name), keys))
                    name = self.segments.write(whole, day, durable=day != LIVE)
                    kept.append((name, day, others, last_day(whole)))
            for day, part in _by_day(rows).items():
                tables = tables_of(
                    [one.job for one in part],
                    [row for one in part for row in one.attempts],
                    [row for one in part for row in one.hours],
                )
                name = self.segments.write(tables, day, durable=day != LIVE)
                kept.append((name, day, len(part), last_day(tables)))
            db.executemany("DELETE FROM segments WHERE name = ?", [(name,) for name in old])
            db.executemany(PUT_SEGMENT, kept)
            db.executemany(_PUT_JOB, [_state_row(one) for one in rows])

    def _segments_with(self, keys: set[tuple[str, str]]) -> Iterator[tuple[str, str, int]]:
        """The segments that hold rows of these jobs: day, name, and how many other jobs."""
        periods: set[tuple[str, str]] = set()
        for project, job in keys:
            row = self.state.one(
                "SELECT live, first_day FROM jobs WHERE project = ? AND job = ?", project, job
            )
            if row is not None and row["first_day"]:
                periods.add(_periods(row["live"], row["first_day"]))
        for day, name in sorted({one for two in periods for one in self._named(_IN_PERIODS, *two)}):
            found, others = self.segments.holds(day, name, keys)
            if found:
                yield day, name, others


_IN_PERIODS = "SELECT day, name FROM segments WHERE day IN (?, ?)"
_PUT_JOB = """
INSERT INTO jobs (project, job, path, live, first_day, last_day, kernel, source, labels, print)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (project, job) DO UPDATE SET path = excluded.path, live = excluded.live,
    first_day = excluded.first_day, last_day = excluded.last_day, kernel = excluded.kernel,
    source = excluded.source, labels = excluded.labels, print = excluded.print
"""


def _periods(live: bool, first_day: str) -> tuple[str, str]:
    """The periods whose segments may hold a job's rows."""
    return (LIVE, LIVE) if live else (first_day, week_of(first_day))


def _by_day(rows: Sequence[JobRows]) -> dict[str, list[JobRows]]:
    """The jobs by the day on which they began, live ones by themselves."""
    days: dict[str, list[JobRows]] = {}
    for one in rows:
        days.setdefault(LIVE if one.live else days_of(one)[0], []).append(one)
    return days


def _state_row(one: JobRows) -> tuple[Any, ...]:
    first, last = days_of(one)
    job = one.job
    identity = (job["project"], job["job"], job["path"], int(one.live), first, last)
    labels = json.dumps(dict(one.given))
    return (*identity, job["kernel"], job["source"], labels, one.print)
