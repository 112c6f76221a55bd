"""Rows on disk: immutable Parquet files, one of each table for each segment, a folder a period.

    rows/attempts/day=2026-11-19/5f0c….parquet     rows/jobs/day=live/71aa….parquet
    rows/days/day=2026-11-02+7/…                   rows/job_hours/…

    2026-11-19      of jobs that began on that day
    2026-11-02+7    of the week from that Monday on, once it is over
    live            of jobs that are not over

A segment's files are written whole and synced; only then does the database name it. What it
replaces goes out of the database in the same transaction, and from the disk after `GRACE_S`.
"""

import os
import time
import uuid
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from torchett.fleet.schema import ACCOUNT_COLUMNS, DAYS, LABELS, STORED, View

LIVE = "live"
_WEEK = "+7"
GRACE_S = 120.0  # that a reader may still need a replaced file
_TYPES = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "DOUBLE": pa.float64(),
    "TIMESTAMP": pa.timestamp("us"),
    "DATE": pa.date32(),
}
Tables = dict[str, pa.Table]


def schema_of(view: View) -> pa.Schema:
    """A view's columns as an Arrow schema."""
    return pa.schema([(column.name, _TYPES[column.type]) for column in view.columns])


SCHEMAS = {view.name: schema_of(view) for view in STORED}
# Not `empty_table`: whatever makes arrays of lists imports pandas, if it is installed.
EMPTY = {name: pa.Table.from_batches([], schema) for name, schema in SCHEMAS.items()}
_LABELS = [*LABELS, "labels"]
# Hours' sums repeat jobs' and compress well as they are; elsewhere whole numbers hardly repeat.
_PLAIN = ("job_hours",)
_PACKED_BITS = (pa.int64(), pa.timestamp("us"))


def tables_of(
    jobs: list[dict[str, Any]], attempts: list[dict[str, Any]], hours: list[dict[str, Any]]
) -> Tables:
    """The tables of a segment: rows as given, hours with their jobs' labels, and sums by day."""
    found = pa.Table.from_pylist(jobs, SCHEMAS["jobs"])
    labels = found.select(["project", "job", *_LABELS])
    bare = pa.Table.from_pylist(hours, SCHEMAS["job_hours"]).drop_columns(_LABELS)
    labelled = bare.join(labels, keys=["project", "job"], join_type="left outer")
    tables = {
        "jobs": found,
        "attempts": pa.Table.from_pylist(attempts, SCHEMAS["attempts"]),
        "job_hours": labelled.select(SCHEMAS["job_hours"].names),
    }
    return with_days(tables)


def with_days(tables: Tables) -> Tables:
    """The tables with `days` computed again from job_hours."""
    hours = tables["job_hours"]
    day = pc.cast(pc.floor_temporal(hours["hour"], unit="day"), pa.date32())
    return {**tables, "days": _summed(hours.append_column("day", day))}


def _summed(days: pa.Table) -> pa.Table:
    """One row for each day, account and labels."""
    keys = [name for name in DAYS.names if name != "ns"]
    found = days.group_by(keys).aggregate([("ns", "sum")]).rename_columns({"ns_sum": "ns"})
    ordered = found.sort_by([("day", "ascending")])
    return ordered.select(list(DAYS.names)).cast(SCHEMAS["days"])


class Segments:
    """The Parquet files below a fleet's `rows` folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, table: str, day: str, name: str) -> Path:
        return self.folder / table / f"day={day}" / f"{name}.parquet"

    def write(self, tables: Tables, day: str, *, durable: bool = True) -> str:
        """Write a new segment; its name. Nobody reads it before the database names it."""
        name = uuid.uuid4().hex
        for table in SCHEMAS:
            self._write_file(tables[table], self.path(table, day, name), durable)
        return name

    def join(self, parts: Sequence[tuple[str, str]], day: str, *, durable: bool = True) -> str:
        """Write the rows of several segments as a new one, a table at a time; its name."""
        name = uuid.uuid4().hex
        for table in SCHEMAS:
            whole = pa.concat_tables([self.read(*part, [table])[table] for part in parts])
            whole = _summed(whole) if table == "days" else whole
            self._write_file(whole, self.path(table, day, name), durable)
        return name

    def _write_file(self, table: pa.Table, path: Path, durable: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        order = {"jobs": "began", "attempts": "began", "job_hours": "hour"}.get(
            path.parents[1].name
        )
        if order and len(table) > 1:
            table = table.sort_by(order)
        pq.write_table(
            table,
            part,
            compression="zstd",
            row_group_size=1 << 17,
            **_encodings(path.parents[1].name, table.schema),
        )
        if durable:
            with open(part, "rb") as file:
                os.fsync(file.fileno())
        os.replace(part, path)

    def read(self, day: str, name: str, tables: Iterable[str] = SCHEMAS) -> Tables:
        """A segment's rows."""
        return {
            table: _whole(
                pq.read_table(self.path(table, day, name), partitioning=None, schema=SCHEMAS[table])
            )
            for table in tables
        }

    def holds(self, day: str, name: str, jobs: set[tuple[str, str]]) -> tuple[int, int]:
        """How many of these jobs a segment holds, and how many others."""
        path = self.path("jobs", day, name)
        table = pq.read_table(path, partitioning=None, columns=["project", "job"])
        found = pc.sum(_is_of(table, jobs)).as_py() or 0
        return found, len(table) - found

    def remove_unnamed(self, named: set[str], now_s: float | None = None) -> int:
        """Remove files of no segment that are older than the grace; how many."""
        limit = (time.time() if now_s is None else now_s) - GRACE_S
        removed = 0
        for path in self.folder.glob("*/day=*/*"):
            if path.name.removesuffix(".parquet") in named:
                continue
            try:
                if path.stat().st_mtime < limit:
                    path.unlink()
                    removed += 1
            except OSError:
                continue  # another process removed it
        return removed


def _encodings(name: str, schema: pa.Schema) -> dict[str, Any]:
    """How a table's columns are written: in fewest bytes, as readers of several years know it."""
    if name in _PLAIN:
        return {}
    numbers = [column.name for column in schema if column.type in _PACKED_BITS]
    others = [name for name in schema.names if name not in numbers]
    packed = dict.fromkeys(numbers, "DELTA_BINARY_PACKED")
    return {"use_dictionary": others, "column_encoding": packed}


def _whole(table: pa.Table) -> pa.Table:
    """With zeros for accounts that were not known yet when a segment was written."""
    for place, column in enumerate(table.schema):
        if column.name in ACCOUNT_COLUMNS and table[column.name].null_count:
            filled = pc.fill_null(table[column.name], pa.scalar(0, pa.int64()))
            table = table.set_column(place, column, filled)
    return table


def last_day(tables: Tables) -> str | None:
    """The last day that rows of a segment are of."""
    times = [
        found
        for found in (pc.max(tables["job_hours"]["hour"]), pc.max(tables["jobs"]["ended"]))
        if found.is_valid
    ]
    return f"{max(time.as_py() for time in times):%Y-%m-%d}" if times else None


def without_jobs(tables: Tables, jobs: set[tuple[str, str]]) -> Tables:
    """The rows of all other jobs."""
    return {
        name: tables[name].filter(pc.invert(_is_of(tables[name], jobs)))
        for name in ("jobs", "attempts", "job_hours")
    }


def _is_of(table: pa.Table, jobs: set[tuple[str, str]]) -> pa.ChunkedArray:
    """For each row: whether it is of one of these jobs."""
    keys = pc.binary_join_element_wise(table["project"], table["job"], "\0")
    return pc.is_in(keys, pa.array([f"{project}\0{job}" for project, job in jobs]))


def week_of(day: str) -> str:
    """The week that a day or a week is in."""
    first = date.fromisoformat(day.removesuffix(_WEEK))
    return f"{first - timedelta(days=first.weekday())}{_WEEK}"


def last_day_of(period: str) -> str:
    """The last day on which a job of this period may have begun."""
    if not period.endswith(_WEEK):
        return period
    return str(date.fromisoformat(period.removesuffix(_WEEK)) + timedelta(days=6))


def first_day_of(period: str) -> str:
    """The first day on which one may have begun."""
    return period.removesuffix(_WEEK)
