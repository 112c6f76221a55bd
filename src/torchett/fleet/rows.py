"""A job's ledger as rows of the fleet: one for the job, one an attempt, one an hour and account.

ledger ──► job row        totals over all attempts
       ──► attempt rows   accounts as columns
       ──► hour rows      each account cut at full hours; they sum to the attempts exactly
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from torchett.fleet.schema import LABELS
from torchett.ledger import RULES_VERSION
from torchett.ledger.hours import HOUR_NS, HourBooks, HourSums
from torchett.ledger.ledger import Ledger
from torchett.ledger.metrics.losses import FailureCost, failure_costs
from torchett.model.accounts import GROUPS, NAMES
from torchett.model.errors import RunError
from torchett.runs.reader import RunReader

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_NS = 4_102_444_800 * 10**9  # 2100: a clock beyond it is not one
MOST_RANKS = 1 << 18  # of what other hosts sent, nothing else is to be believed
MOST_RANK_HOURS = 1 << 27
_ACCOUNTS = [name for name in NAMES if name not in GROUPS]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSource:
    """Which job a run folder is, in whose project, and how its rows came about."""

    project: str
    job: str
    path: str
    source: str = "recorded"
    shipped: bool = False  # the folder came from another host: see RunReader
    labels: tuple[tuple[str, str], ...] = ()  # that win over the run's own
    print: str | None = None  # the folder's fingerprint when it was read

    @property
    def folder(self) -> Path:
        return Path(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRows:
    """All rows of one job."""

    job: dict[str, Any]
    attempts: list[dict[str, Any]]
    hours: list[dict[str, Any]]
    live: bool = False
    given: tuple[tuple[str, str], ...] = ()  # labels that do not come from the run itself
    print: str | None = None


def rows_of(reader: RunReader, source: JobSource, hours: HourBooks | None = None) -> JobRows:
    """The rows of a run as of the reader's last poll; RunError if it is larger than any job is.

    A caller that refreshes often keeps the `hours` of the job: then a refresh costs what is new.
    """
    if (ranks := max((a.ranks for a in reader.job.attempts), default=1)) > MOST_RANKS:
        raise RunError(f"{source.path}: expected at most {MOST_RANKS} ranks, found {ranks}")
    ledger = reader.ledger()
    rank_hours = (
        sum(t.attempt.ranks * (t.hi_ns - t.lo_ns) for t in ledger.window.tenures) // HOUR_NS
    )
    if rank_hours > MOST_RANK_HOURS:
        raise RunError(
            f"{source.path}: expected less than {MOST_RANK_HOURS} rank-hours, found {rank_hours}"
        )
    labels = label_columns({**reader.labels, **dict(source.labels)})
    memory = defaultdict[int, int](int)
    for attempt, _, fact in reader.facts("peak_memory"):
        memory[attempt] = max(memory[attempt], int(fact.get("bytes", 0)))
    saves = defaultdict[int, set[int]](set)
    for checkpoint in reader.checkpoints():
        saves[checkpoint.attempt].add(checkpoint.step)
    counts = {attempt: len(steps) for attempt, steps in saves.items()}
    sums = (hours or HourBooks()).sums(ledger, reader.history)
    return _rows(ledger, source, labels, counts, memory, sums)


def _rows(
    ledger: Ledger,
    source: JobSource,
    labels: dict[str, str | None],
    saves: Mapping[int, int],
    memory: Mapping[int, int],
    sums: HourSums,
) -> JobRows:
    identity = {"project": source.project, "job": source.job}
    costs = {cost.attempt: cost for cost in failure_costs(ledger)}
    attempts = []
    for attempt in ledger.attempts:
        tenure = attempt.tenure
        number = tenure.attempt.number
        accounts = attempt.accounts
        own = {name: ns for name, ns in accounts.items() if name.startswith("x-")}
        attempts.append(
            {
                **identity,
                "attempt": number,
                "state": tenure.state,
                "began": timestamp(tenure.lo_ns),
                "ended": timestamp(tenure.hi_ns),
                "ranks": tenure.attempt.ranks,
                "rank_ns": tenure.rank_ns,
                "cause": tenure.attempt.cause if tenure.failed else None,
                "domain": attempt.domain,
                "failed_rank": tenure.attempt.failed_rank,
                "first_step": attempt.first_step,
                "saves": saves.get(number, 0),
                "peak_memory_bytes": memory.get(number),
                **_failure_columns(costs.get(number)),
                **{f"{group}_ns": ns for group, ns in attempt.groups.items()},
                "held_idle_ns": 0,
                **{f"{name}_ns": accounts.get(name, 0) for name in _ACCOUNTS},
                "own_ns": sum(own.values()),
                "own": json.dumps(own) if own else None,
                "kernel": RULES_VERSION,
                **labels,
            }
        )
    job = _job_row(ledger, source)
    job |= {
        "saves": sum(saves.values()),
        "peak_memory_bytes": max(memory.values(), default=None),
        **labels,
    }
    hours = [
        {**identity, "hour": timestamp(hour * HOUR_NS), **_account(group, account, ns)}
        for (hour, group, account), ns in sums.items()
    ]
    return JobRows(
        job=job,
        attempts=attempts,
        hours=hours,
        live=ledger.window.live,
        given=source.labels,
        print=source.print,
    )


def _account(group: str, account: str, ns: int) -> dict[str, Any]:
    return {"account": account, "account_group": group, "ns": ns}


def _failure_columns(cost: FailureCost | None) -> dict[str, int | None]:
    names = ("detect", "restart_gap", "start_again", "unsaved")
    return {
        f"failure_{name}_ns": None if cost is None else getattr(cost, f"{name}_ns")
        for name in names
    }


def _job_row(ledger: Ledger, source: JobSource) -> dict[str, Any]:
    window, failures = ledger.window, ledger.failures
    return {
        "project": source.project,
        "job": source.job,
        "state": window.tenures[-1].state if window.tenures else "vanished",
        "began": timestamp(window.start_ns),
        "ended": timestamp(window.end_ns),
        "ranks": ledger.ranks,
        "attempts": len(window.tenures),
        "ett_percent": ledger.ett_percent,
        "rank_ns": ledger.rank_ns,
        **{f"{group}_ns": ns for group, ns in ledger.groups.items()},
        "held_idle_ns": 0,
        "window_ns": ledger.window_ns,
        "queue_ns": window.queue_ns,
        "requeue_ns": window.requeue_ns,
        "time_to_start_ns": ledger.time_to_start_ns,
        "time_to_recover_ns": sum(ledger.time_to_recover_ns),
        "recoveries": len(ledger.time_to_recover_ns),
        **{f"{domain}_failures": count for domain, count in failures.items()},
        "at_risk_ns": ledger.at_risk_ns,
        "estimated_ns": ledger.estimated_ns,
        "last_step": ledger.last_step,
        "path": source.path,
        "source": source.source,
        "kernel": RULES_VERSION,
    }


def label_columns(labels: Mapping[str, str]) -> dict[str, str | None]:
    """The known labels as columns, and all others as one."""
    rest = {key: value for key, value in sorted(labels.items()) if key not in LABELS}
    return {
        **{name: labels.get(name) for name in LABELS},
        "labels": json.dumps(rest, ensure_ascii=False) if rest else None,
    }


def timestamp(ns: int) -> datetime:
    """A time of the wall clock as DuckDB keeps it: UTC, in microseconds."""
    clipped = min(max(ns, 0), _LAST_NS)
    return (_EPOCH + timedelta(microseconds=clipped // 1000)).replace(tzinfo=None)


def days_of(rows: JobRows) -> tuple[str, str]:
    """The first and the last day on which the job held hardware; at least the one it began on."""
    times = [rows.job["began"], *(row["hour"] for row in rows.hours)]
    return f"{min(times):%Y-%m-%d}", f"{max(times):%Y-%m-%d}"
