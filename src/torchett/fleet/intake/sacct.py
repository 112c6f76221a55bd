"""Slurm's accounting as rows: what was held, and what of it no process used.

    sacct -aPD -o JobID,JobName,Account,User,Partition,QOS,Cluster,State,ExitCode,Submit,Eligible,\
Start,End,AllocTRES

    allocated  ├────────────────────────────────────────┤   one row a try (-D lists requeues)
    steps           ├── srun 0 ──┤       ├─ srun 1 ─┤       4711.0, 4711.1 (without -X)
    held_idle  ├───┤              ├─────┤            ├──┤   × GPUs; the rest is unattributed

Nothing in it says what trained: that is unattributed, unless the job recorded itself. Where steps
are not listed (-X) it is not known what was idle, either.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torchett.fleet.rows import JobRows, label_columns, timestamp
from torchett.fleet.schema import ATTEMPTS, HELD_IDLE, JOBS
from torchett.ledger import RULES_VERSION
from torchett.ledger.hours import HOUR_NS
from torchett.model.causes import domain_of
from torchett.model.errors import InputError
from torchett.runs.importers.sacct import SlurmAttempt, SlurmJob, history_of, parse_sacct

_LAST_S = 1 << 33  # the year 2242: a time beyond it is none


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """One allocation: when, how many GPUs, and when its steps ran."""

    begin_ns: int
    end_ns: int
    submit_ns: int
    gpus: int
    state: str
    cause: str | None
    steps: tuple[tuple[int, int], ...] | None  # None: not listed


def parse(lines: Iterable[str], name: str, project: str, now_s: float) -> Iterator[JobRows]:
    """The rows of each job that held GPUs, from the lines of `sacct -P`."""
    for job in parse_sacct(lines, name):
        if not any(attempt.gpus for attempt in job.attempts):
            continue
        ends = history_of(job, now_s).job.attempts
        tries = [
            _held(job.number, one, said.outcome or "live", said.cause, name, now_s)
            for one, said in zip(job.attempts, ends, strict=True)
        ]
        yield _job_rows(f"slurm-{job.number}", project, name, tries, _labels(job))


def _labels(job: SlurmJob) -> dict[str, str]:
    found = {
        "team": job.account,
        "user": job.user,
        "queue": job.partition,
        "priority": job.qos,
        "cluster": job.cluster,
        "slurm_job": job.number,
    }
    return {label: value for label, value in found.items() if value}


def _held(
    job: str, one: SlurmAttempt, state: str, cause: str | None, name: str, now_s: float
) -> _Held:
    end_s = max(now_s, one.start_s) if one.end_s is None else one.end_s
    steps = [(begin, end_s if end is None else end) for begin, end in one.busy]
    if max(end_s, *(end for _, end in steps), 0) >= _LAST_S:
        raise InputError(f"{name}: job {job}: expected times in seconds, found {end_s:.0f}")
    submit_s = max(one.submit_s, one.eligible_s or 0.0)
    return _Held(
        begin_ns=_ns(one.start_s),
        end_ns=_ns(end_s),
        submit_ns=_ns(min(submit_s, one.start_s)),
        gpus=one.gpus,
        state=state,
        cause=cause,
        steps=tuple((_ns(a), _ns(b)) for a, b in steps) if one.steps_known else None,
    )


def _ns(seconds: float) -> int:
    return int(seconds) * 10**9


def _idle_ns(held: _Held) -> list[tuple[int, int]]:
    """When no step ran."""
    if held.steps is None:
        return []
    found, at = [], held.begin_ns
    for begin, end in sorted(held.steps):
        if begin >= held.end_ns:
            break
        if begin > at:
            found.append((at, begin))
        at = max(at, end)
    if at < held.end_ns:
        found.append((at, held.end_ns))
    return found


def _job_rows(
    job: str, project: str, path: str, tries: list[_Held], said: Mapping[str, str]
) -> JobRows:
    identity = {"project": project, "job": job}
    labels = label_columns(said)
    attempts, hours = [], defaultdict[tuple[int, str], int](int)
    for number, held in enumerate(tries):
        idle = _idle_ns(held)
        idle_ns = held.gpus * sum(end - begin for begin, end in idle)
        whole_ns = held.gpus * (held.end_ns - held.begin_ns)
        for begin, end in _hours(held.begin_ns, held.end_ns):
            none = sum(max(min(end, b) - max(begin, a), 0) for a, b in idle)
            hours[begin // HOUR_NS, HELD_IDLE] += held.gpus * none
            hours[begin // HOUR_NS, "unattributed"] += held.gpus * (end - begin - none)
        attempts.append(
            {
                **_zeros(ATTEMPTS.columns),
                **identity,
                "attempt": number,
                "state": held.state,
                "began": timestamp(held.begin_ns),
                "ended": timestamp(held.end_ns),
                "ranks": held.gpus,
                "rank_ns": whole_ns,
                "held_idle_ns": idle_ns,
                "unattributed_ns": whole_ns - idle_ns,
                "cause": held.cause,
                "domain": _domain(held),
                "kernel": RULES_VERSION,
                **labels,
            }
        )
    job_row = _job_row(job, project, path, tries, attempts) | labels
    hour_rows = [
        {
            **identity,
            "hour": timestamp(hour * HOUR_NS),
            "account": account,
            "account_group": account,
            "ns": ns,
        }
        for (hour, account), ns in hours.items()
        if ns
    ]
    live = tries[-1].state == "live"
    return JobRows(job=job_row, attempts=attempts, hours=hour_rows, live=live)


def _domain(held: _Held) -> str | None:
    if held.state in ("success", "live"):
        return None
    return domain_of("preempted" if held.state == "preempted" else "failed", held.cause, None)


def _job_row(
    job: str, project: str, path: str, tries: list[_Held], attempts: list[dict[str, Any]]
) -> dict[str, Any]:
    first, last = tries[0], tries[-1]
    domains = [row["domain"] for row in attempts]
    whole = {
        f"{name}_ns": sum(row[f"{name}_ns"] for row in attempts)
        for name in ("rank", HELD_IDLE, "unattributed")
    }
    gaps = (b.begin_ns - a.end_ns for a, b in pairwise(tries))
    return {
        **_zeros(JOBS.columns),
        "project": project,
        "job": job,
        "state": last.state,
        "began": timestamp(first.begin_ns),
        "ended": timestamp(last.end_ns),
        "ranks": last.gpus,
        "attempts": len(tries),
        "ett_percent": None,
        **whole,
        "window_ns": last.end_ns - first.begin_ns,
        "queue_ns": first.begin_ns - first.submit_ns,
        "requeue_ns": sum(max(gap, 0) for gap in gaps),
        **{
            f"{domain}_failures": domains.count(domain) for domain in ("infra", "scheduler", "user")
        },
        "time_to_start_ns": None,
        "peak_memory_bytes": None,
        "last_step": None,
        "path": path,
        "source": "sacct",
        "kernel": RULES_VERSION,
    }


def _zeros(columns: Iterable[Any]) -> dict[str, Any]:
    """A row of nothing: zero where a number is expected."""
    empty = ("failure_", "first_step", "failed_rank", "peak_memory", "last_step")
    return {
        column.name: 0
        if column.type in ("BIGINT", "INTEGER", "DOUBLE") and not column.name.startswith(empty)
        else None
        for column in columns
    }


def _hours(begin_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
    """The span cut at full hours."""
    while begin_ns < end_ns:
        cut = min(end_ns, (begin_ns // HOUR_NS + 1) * HOUR_NS)
        yield begin_ns, cut
        begin_ns = cut
