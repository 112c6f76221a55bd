"""A fleet's jobs as rows of the Jobs page, and where the run folder of each lies."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchett.fleet.schema import LABELS
from torchett.model.accounts import GROUPS
from torchett.model.errors import RunError
from torchett.serve.fleet.filters import LONGEST
from torchett.serve.fleet.source import FleetSource
from torchett.serve.runs import JobRow

_MOST = 20_000  # the newest: a page shows a hundred of them
_GROUP_COLUMNS = ", ".join(f"{group}_ns" for group in GROUPS)
_COLUMNS = (
    "project, job, state, began, ended, ranks, attempts, ett_percent, rank_ns, time_to_start_ns,"
    " time_to_recover_ns, recoveries, infra_failures + scheduler_failures AS failures, "
    + f"{_GROUP_COLUMNS}, "
    + ", ".join(f'"{name}"' for name in LABELS)
)


def fleet_rows(source: FleetSource) -> list[JobRow]:
    """A row for each job: live ones first, then the newest."""
    rows = source.rows(
        f"SELECT {_COLUMNS} FROM jobs ORDER BY state <> 'live', began DESC LIMIT {_MOST}"
    )
    return [_row(row) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSums:
    """A job whose run folder is gone: what its rows say."""

    row: JobRow
    attempts: Sequence[Mapping[str, Any]]
    accounts: Sequence[tuple[str, str, float]]  # account, group, rank-seconds

    def to_json(self) -> dict[str, Any]:
        attempts = [
            {**one, "began": f"{one['began']}Z", "ended": f"{one['ended']}Z"}
            for one in self.attempts
        ]
        return {"job": asdict(self.row), "attempts": attempts, "accounts": self.accounts}


def run_folder(source: FleetSource, key: str) -> Path | None:
    """Where the run folder of PROJECT/JOB lies; None: it is gone. RunError: no such job."""
    project, _, job = key.partition("/")
    rows = source.rows("SELECT path FROM jobs WHERE project = ? AND job = ?", [project, job])
    if not rows:
        raise RunError(f"{key[:80]}: no such job in this fleet")
    path = Path(rows[0]["path"] or "")
    return path if rows[0]["path"] and path.is_dir() else None


def job_sums(source: FleetSource, key: str) -> JobSums:
    """What the fleet's rows say of one job."""
    project, _, job = key.partition("/")
    which, params = "WHERE project = ? AND job = ?", [project, job]
    (row,) = source.rows(f"SELECT {_COLUMNS} FROM jobs {which}", params)
    attempts = source.rows(
        "SELECT attempt, state, began, ended, ranks, cause, domain, failed_rank, rank_ns,"
        f" {_GROUP_COLUMNS} FROM attempts {which} ORDER BY attempt LIMIT 200",
        params,
    )
    accounts = source.rows(
        "SELECT account, account_group AS g, sum(ns)::DOUBLE / 1e9 AS s FROM job_hours"
        f" {which} GROUP BY ALL ORDER BY s DESC",
        params,
    )
    return JobSums(
        row=_row(row),
        attempts=[{**one, "shares": _shares(one)} for one in attempts],
        accounts=[(one["account"], one["g"], one["s"]) for one in accounts],
    )


def _shares(row: Mapping[str, Any]) -> dict[str, float]:
    whole = max(row["rank_ns"], 1)
    return {group: 100 * (row[f"{group}_ns"] or 0) / whole for group in GROUPS}


def _row(row: Mapping[str, Any]) -> JobRow:
    start, count = row["time_to_start_ns"], row["recoveries"]
    return JobRow(
        key=f"{row['project']}/{row['job']}",
        name=row["job"],
        state=row["state"],
        began_s=_epoch(row["began"]),
        ended_s=_epoch(row["ended"]),
        ranks=row["ranks"],
        attempts=row["attempts"],
        ett_percent=row["ett_percent"],
        failures=row["failures"],
        time_to_start_s=None if start is None else start / 1e9,
        time_to_recover_s=row["time_to_recover_ns"] / count / 1e9 if count else None,
        rank_hours=row["rank_ns"] / 3.6e12,
        shares=_shares(row),
        labels={name: row[name][:LONGEST] for name in LABELS if row[name] and name != "user"},
    )


def _epoch(at: datetime | None) -> float | None:
    return None if at is None else at.replace(tzinfo=UTC).timestamp()
