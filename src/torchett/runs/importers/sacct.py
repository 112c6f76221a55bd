"""Slurm's accounting as histories: every attempt of every job, from what `sacct -D` prints.

    sacct -a -D -P -S now-30days -o JobID,JobName,Account,QOS,State,ExitCode,Submit,Eligible,Start,\
End,AllocTRES > jobs.psv

    4711|gpt|…|PREEMPTED|…      attempt 0: allocated ──┬─ step 4711.0 ─┬── given back
    4711.0|gpt|…                                      held without   held without
    4711|gpt|…|COMPLETED|…      attempt 1              a process      a process

With -X there are no steps, and nothing is known of what was held without a process. Slurm knows no
training steps: the time of an attempt is unattributed, and its queue, requeues and failures are
known.
"""

import csv
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from torchett.ledger.history import History
from torchett.ledger.rows import AccountTable, Rows
from torchett.model.causes import Outcome
from torchett.model.errors import InputError
from torchett.model.values import Attempt, Job

FIELDS = (
    "JobID,JobName,Cluster,Partition,Account,User,QOS,State,ExitCode,Submit,Eligible,Start,End"
    ",AllocTRES"
)
_NEEDED = ("JobID", "State", "Submit", "Start", "End")
_GPUS = re.compile(r"gres/gpu=(\d+)")
_OURS = ("extern", "batch")  # Slurm's own steps
# How an attempt ended: outcome and cause by Slurm's state.
_ENDS: dict[str, tuple[Outcome, str | None]] = {
    "COMPLETED": ("success", None),
    "PREEMPTED": ("preempted", "preemption"),
    "REQUEUED": ("preempted", "requeue"),
    "CANCELLED": ("failed", "user_cancel"),
    "TIMEOUT": ("failed", "time_limit"),
    "DEADLINE": ("failed", "time_limit"),
    "NODE_FAIL": ("failed", "node_failure"),
    "BOOT_FAIL": ("failed", "node_failure"),
    "OUT_OF_MEMORY": ("failed", "host_oom_kill"),
    "FAILED": ("failed", None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmAttempt:
    """One allocation of a job; seconds since the epoch, None: not yet."""

    state: str
    submit_s: float
    eligible_s: float | None
    start_s: float
    end_s: float | None
    gpus: int
    exit_code: str = ""
    busy: tuple[tuple[float, float | None], ...] = ()  # when its steps ran
    steps_known: bool = False

    def held_s(self, now_s: float) -> float:
        """Seconds for which the hardware was allocated."""
        return max(0.0, (now_s if self.end_s is None else self.end_s) - self.start_s)

    def without_process_s(self, now_s: float) -> float | None:
        """Of these, the seconds without a step that ran; None if no steps were printed."""
        if not self.steps_known:
            return None
        over_s = now_s if self.end_s is None else self.end_s
        seen_s, busy_s = self.start_s, 0.0
        for begin, end in sorted((a, over_s if b is None else b) for a, b in self.busy):
            end = min(end, over_s)
            busy_s += max(0.0, end - max(begin, seen_s))
            seen_s = max(seen_s, end)
        return max(0.0, self.held_s(now_s) - busy_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A job with its attempts in order; one that never started has none."""

    number: str
    name: str
    account: str
    qos: str
    user: str
    partition: str
    cluster: str
    attempts: tuple[SlurmAttempt, ...]

    @property
    def gpus(self) -> int:
        return max((attempt.gpus for attempt in self.attempts), default=0)


def parse_sacct(lines: Iterable[str], name: str) -> list[SlurmJob]:
    """The jobs in what `sacct -P` printed, in its order."""
    table = csv.reader(lines, delimiter="|", quoting=csv.QUOTE_NONE)
    header = next(table, [])
    missing = [key for key in _NEEDED if key not in header]
    if missing:
        raise InputError(
            f"{name}:1: expected a header of `sacct -P` with {', '.join(missing)}, found"
            f" '{'|'.join(header)[:60]}'"
        )
    allocations: list[dict[str, str]] = []
    steps: dict[str, list[dict[str, str]]] = {}
    for cells in table:
        if not any(cells):
            continue
        if len(cells) != len(header):
            raise InputError(
                f"{name}:{table.line_num}: expected {len(header)} cells, found {len(cells)}"
            )
        row = dict(zip(header, cells, strict=True))
        job, dot, step = row["JobID"].partition(".")
        if not dot:
            row["line"] = str(table.line_num)
            allocations.append(row)
        else:
            steps.setdefault(job, []).append({**row, "step": step})
    return _jobs(allocations, steps, name)


def _jobs(
    allocations: list[dict[str, str]], steps: dict[str, list[dict[str, str]]], name: str
) -> list[SlurmJob]:
    found: dict[str, tuple[dict[str, str], list[SlurmAttempt]]] = {}
    for row in allocations:
        said = found.setdefault(row["JobID"], (row, []))
        start_s = _seconds(row["Start"])
        if start_s is None:
            continue  # it waits, or was cancelled before it began
        where = f"{name}:{row['line']}"
        submit_s, end_s = _seconds(row["Submit"]), _seconds(row["End"])
        if submit_s is None or (end_s is not None and end_s < start_s):
            raise InputError(
                f"{where}: expected Submit ≤ Start ≤ End, found {row['Submit']}, {row['Start']},"
                f" {row['End']}"
            )
        gpus = _GPUS.search(row.get("AllocTRES", ""))
        mine = [step for step in steps.get(row["JobID"], ()) if _inside(step, start_s, end_s)]
        own = [step for step in mine if step["step"] not in _OURS]
        used = own or [step for step in mine if step["step"] == "batch"]
        said[1].append(
            SlurmAttempt(
                state=row["State"].split()[0] if row["State"] else "",
                submit_s=min(submit_s, start_s),
                eligible_s=_seconds(row.get("Eligible", "")),
                start_s=start_s,
                end_s=end_s,
                gpus=int(gpus[1]) if gpus else 0,
                exit_code=row.get("ExitCode", ""),
                busy=tuple(
                    (_seconds(one["Start"]) or start_s, _seconds(one["End"])) for one in used
                ),
                steps_known=bool(steps),
            )
        )
    return [
        SlurmJob(
            number=number,
            name=row.get("JobName") or number,
            account=row.get("Account", ""),
            qos=row.get("QOS", ""),
            user=row.get("User", ""),
            partition=row.get("Partition", ""),
            cluster=row.get("Cluster", ""),
            attempts=tuple(sorted(attempts, key=lambda one: one.start_s)),
        )
        for number, (row, attempts) in found.items()
    ]


def history_of(job: SlurmJob, now_s: float) -> History:
    """The job as a history: attempts with their times and ends, a rank for each GPU."""
    if not job.attempts:
        raise InputError(f"job {job.number}: expected an attempt that started, found none")
    ranks = max(1, job.gpus)
    epoch = min(attempt.submit_s for attempt in job.attempts)

    def ns(t_s: float) -> int:
        return round((t_s - epoch) * 1e9)

    attempts, before_s = [], 0.0
    for number, one in enumerate(job.attempts):
        outcome, cause = _ENDS.get(one.state, ("failed", None))
        live = one.end_s is None or one.state in ("RUNNING", "COMPLETING", "SUSPENDED")
        start_s = max(one.start_s, before_s)  # whole seconds: attempts may touch
        wanted_s = min(max(one.submit_s, one.eligible_s or 0.0), start_s)
        if cause is None and outcome == "failed" and one.exit_code:
            cause = f"exit_{one.exit_code.partition(':')[0]}"
        attempts.append(
            Attempt(
                number=number,
                start_ns=ns(start_s),
                ranks=ranks,
                submitted_ns=ns(wanted_s),
                allocated_ns=ns(start_s),
                end_ns=None if live else ns(max(start_s, one.end_s or start_s)),
                outcome=None if live else outcome,
                cause=None if live else cause,
            )
        )
        before_s = start_s if one.end_s is None else max(start_s, one.end_s)
    last = job.attempts[-1]
    return History(
        job=Job(name=f"{job.name}-{job.number}", ranks=ranks, attempts=tuple(attempts)),
        rows=Rows.none(),
        accounts=AccountTable(),
        now_ns=ns(now_s) if last.end_s is None else None,
        epoch_s=epoch,
        notes=("from Slurm's accounting: what the job did in its time is not known",),
    )


def _inside(step: dict[str, str], start_s: float, end_s: float | None) -> bool:
    begin = _seconds(step["Start"])
    return begin is not None and start_s <= begin and (end_s is None or begin <= end_s)


def _seconds(text: str) -> float | None:
    """Seconds since the epoch: so printed (SLURM_TIME_FORMAT=%s), or local time."""
    if text.isdigit():
        return float(text)
    try:
        return time.mktime(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None  # Unknown, None
