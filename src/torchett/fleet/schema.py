"""The fleet's views: what each row means, and every column with its type and unit.

    jobs        one row a job: newest state, totals over all its attempts
    attempts    one row an attempt: how it ended, and each account as a column
    failures    one row a failed attempt: its cause and what it cost
    job_hours   one row a job, hour and account
    hours       the same without the job: what sums by hour and labels are made of
    days        sums over jobs by day, account and labels
    alerts      one row an alert
    accounts    one row an account: its group, colour and meaning

All times are UTC. Durations are integer nanoseconds, summed over ranks where the name is not
`window`, `queue`, `requeue` or `time_to_…`. `docs/fleet.md` is checked against this module.
"""

import zlib
from dataclasses import dataclass
from typing import Final

from torchett.model.accounts import GROUPS, NAMES

LABELS: Final[tuple[str, ...]] = (
    "team",
    "model",
    "cluster",
    "queue",
    "priority",
    "user",
    "torch",
    "image",
    "revision",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: DuckDB's type, and what it says."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One view and its columns, in order."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def _columns(*rows: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(name=name, type=kind, meaning=text) for name, kind, text in rows)


_PROJECT = _columns(("project", "VARCHAR", "Who may write the job: a token's project."))
_JOB = (*_PROJECT, *_columns(("job", "VARCHAR", "The job's name, one folder in its project.")))
_LABELS = (
    *_columns(*((name, "VARCHAR", f"The label `{name}`; NULL if unknown.") for name in LABELS)),
    *_columns(("labels", "VARCHAR", "All other labels, as a JSON object.")),
)
HELD_IDLE: Final = "held_idle"  # a group and its one account: only schedulers' books know it
_GROUPS = _columns(
    *((f"{group}_ns", "BIGINT", f"Rank-ns in the group `{group}`.") for group in GROUPS),
    ("held_idle_ns", "BIGINT", "GPU-ns held without any process: of sacct's jobs."),
)
# Two groups are one account each, and have the same column.
_ACCOUNTS = _columns(
    *(
        (f"{name}_ns", "BIGINT", f"Rank-ns in the account `{name}`.")
        for name in NAMES
        if name not in GROUPS
    )
)
_KERNEL = _columns(("kernel", "INTEGER", "Version of the rules that made the row."))

JOBS: Final = View(
    name="jobs",
    meaning="One row a job: its newest state, and totals over all its attempts.",
    columns=(
        *_JOB,
        *_columns(
            ("state", "VARCHAR", "success, failed, preempted, vanished or live."),
            ("began", "TIMESTAMP", "When the hardware was given to its first attempt."),
            ("ended", "TIMESTAMP", "When its last attempt ended; of a live job: last seen."),
            ("ranks", "INTEGER", "Ranks."),
            ("attempts", "INTEGER", "Attempts, requeues and resumes included."),
            ("ett_percent", "DOUBLE", "100 × effective_ns ÷ rank_ns."),
            ("rank_ns", "BIGINT", "Owned time × ranks: the groups' sum."),
        ),
        *_GROUPS,
        *_columns(
            ("window_ns", "BIGINT", "First allocation to last end."),
            ("queue_ns", "BIGINT", "Wall time in the queue before the first allocation."),
            ("requeue_ns", "BIGINT", "Wall time in queues between attempts."),
            ("time_to_start_ns", "BIGINT", "Time to Start; NULL before the first step."),
            ("time_to_recover_ns", "BIGINT", "Sum of all Times to Recover."),
            ("recoveries", "INTEGER", "How many Times to Recover that sums."),
            ("infra_failures", "INTEGER", "Failed attempts that infrastructure answers for."),
            ("scheduler_failures", "INTEGER", "Failed attempts that the scheduler answers for."),
            ("user_failures", "INTEGER", "Failed attempts that the user answers for."),
            ("at_risk_ns", "BIGINT", "Rank-ns of a live job's steps that no checkpoint holds."),
            ("estimated_ns", "BIGINT", "Rank-ns that a resume inside a folded block splits."),
            ("last_step", "BIGINT", "The highest step whose progress counts."),
            ("saves", "INTEGER", "Checkpoints that became durable."),
            ("peak_memory_bytes", "BIGINT", "Most device memory of one rank, where recorded."),
            ("path", "VARCHAR", "The run folder."),
            ("source", "VARCHAR", "recorded, imported (another tool's file) or sacct."),
        ),
        *_KERNEL,
        *_LABELS,
    ),
)

ATTEMPTS: Final = View(
    name="attempts",
    meaning="One row an attempt: how it ended, what each account got, what its failure cost.",
    columns=(
        *_JOB,
        *_columns(
            ("attempt", "INTEGER", "The attempt's number."),
            ("state", "VARCHAR", "success, failed, preempted, vanished or live."),
            ("began", "TIMESTAMP", "From when on it owns the job's time."),
            ("ended", "TIMESTAMP", "Until when; of a live attempt: last seen."),
            ("ranks", "INTEGER", "Ranks of this attempt."),
            ("rank_ns", "BIGINT", "Owned time × ranks: the accounts' sum."),
            ("cause", "VARCHAR", "What ended it; NULL if it did not fail."),
            ("domain", "VARCHAR", "infra, scheduler or user; NULL if it did not fail."),
            ("failed_rank", "INTEGER", "The rank that the cause was seen on."),
            ("first_step", "BIGINT", "Where it took up; NULL without a step."),
            ("saves", "INTEGER", "Checkpoints that became durable in it."),
            ("peak_memory_bytes", "BIGINT", "Most device memory of one rank, where recorded."),
            ("failure_detect_ns", "BIGINT", "Its failure: rank-ns until it was over."),
            ("failure_restart_gap_ns", "BIGINT", "… until the next attempt started."),
            ("failure_start_again_ns", "BIGINT", "… of the next attempt's start."),
            ("failure_unsaved_ns", "BIGINT", "… of steps that were lost."),
        ),
        *_GROUPS,
        *_ACCOUNTS,
        *_columns(
            ("own_ns", "BIGINT", "Rank-ns in users' own accounts, x-NAME."),
            ("own", "VARCHAR", "Those accounts by name, as a JSON object."),
        ),
        *_KERNEL,
        *_LABELS,
    ),
)

FAILURES: Final = View(
    name="failures",
    meaning="One row a failed attempt: its cause and the rank-ns it cost.",
    columns=(
        *_JOB,
        *_columns(
            ("attempt", "INTEGER", "The attempt that failed."),
            ("ended", "TIMESTAMP", "When it was over."),
            ("state", "VARCHAR", "failed, preempted or vanished."),
            ("cause", "VARCHAR", "What ended it, as recorded; else its state."),
            ("domain", "VARCHAR", "infra, scheduler or user."),
            ("failed_rank", "INTEGER", "The rank that the cause was seen on."),
            ("ranks", "INTEGER", "Ranks of the attempt."),
            ("detect_ns", "BIGINT", "Rank-ns from the last progress to the attempt's end."),
            ("restart_gap_ns", "BIGINT", "Rank-ns until the next attempt started."),
            ("start_again_ns", "BIGINT", "Rank-ns of the next attempt's start."),
            ("unsaved_ns", "BIGINT", "Rank-ns of steps that were lost."),
            ("total_ns", "BIGINT", "The sum of these four."),
        ),
        *_LABELS,
    ),
)

_ACCOUNT = _columns(
    ("account", "VARCHAR", "The account: see the view accounts; x-NAME is a user's own."),
    ("account_group", "VARCHAR", f"Its group: {', '.join(GROUPS)} or held_idle."),
    ("ns", "BIGINT", "Rank-ns. All rows of an hour sum to the hardware's time held in it."),
)

JOB_HOURS: Final = View(
    name="job_hours",
    meaning="One row a job, hour, group and account.",
    columns=(
        *_JOB,
        *_columns(("hour", "TIMESTAMP", "The hour's begin.")),
        *_ACCOUNT,
        *_LABELS,
    ),
)
HOURS: Final = View(
    name="hours",
    meaning="Time by hour, group, account and labels; sum the rows of one key.",
    columns=(
        *_PROJECT,
        *_columns(("hour", "TIMESTAMP", "The hour's begin.")),
        *_ACCOUNT,
        *_LABELS,
    ),
)
DAYS: Final = View(
    name="days",
    meaning="Sums over jobs by day, group, account and labels; sum the rows of one key.",
    columns=(
        *_PROJECT,
        *_columns(("day", "DATE", "The day.")),
        *_ACCOUNT,
        *_LABELS,
    ),
)
ALERTS: Final = View(
    name="alerts",
    meaning="One row an alert: what was noticed, since when, and whether it is over.",
    columns=_columns(
        ("id", "BIGINT", "The alert's number."),
        ("rule", "VARCHAR", "The rule that noticed it."),
        ("severity", "VARCHAR", "page, warn or info."),
        ("project", "VARCHAR", "The project; NULL: the whole fleet."),
        ("job", "VARCHAR", "The job; NULL if it is not about one."),
        ("subject", "VARCHAR", "What it is about: labels as a JSON object."),
        ("opened", "TIMESTAMP", "When it was noticed."),
        ("closed", "TIMESTAMP", "When it was over; NULL while open."),
        ("text", "VARCHAR", "One line for a reader."),
        ("value", "DOUBLE", "The figure that was noticed, in the rule's unit."),
        ("expected", "DOUBLE", "What was expected instead."),
        ("details", "VARCHAR", "Whatever else the rule knows, as a JSON object."),
    ),
)
ACCOUNTS: Final = View(
    name="accounts",
    meaning="One row an account of the chart, in its order.",
    columns=_columns(
        ("account", "VARCHAR", "Its name."),
        ("account_group", "VARCHAR", "The group that it belongs to."),
        ("colour", "VARCHAR", "Its colour on every page."),
        ("meaning", "VARCHAR", "One sentence."),
    ),
)

VIEWS: Final[tuple[View, ...]] = (
    JOBS,
    ATTEMPTS,
    FAILURES,
    JOB_HOURS,
    HOURS,
    DAYS,
    ALERTS,
    ACCOUNTS,
)
# What lies in Parquet files; the other views are made from these and from SQLite.
STORED: Final[tuple[View, ...]] = (JOBS, ATTEMPTS, JOB_HOURS, DAYS)
# Changes when a stored table gets another column, as a new account is one.
LAYOUT: Final = f"{zlib.crc32(repr([(view.name, view.names) for view in STORED]).encode()):08x}"
ACCOUNT_COLUMNS: Final = frozenset(column.name for column in _ACCOUNTS)
