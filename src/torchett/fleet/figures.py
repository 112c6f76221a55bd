"""What `ett fleet ls`, `show` and `worst` say: sums of rows, exact in integer nanoseconds.

The window of a share is that of its hours: a job that began before it counts with what fell into
it. `ls` and `worst` are of whole jobs.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchett.fleet.fleet import Fleet
from torchett.fleet.label_sums import JOBS, SUMMED, LabelSums
from torchett.fleet.schema import HELD_IDLE, LABELS
from torchett.fleet.windows import Span
from torchett.model.accounts import GROUPS, NAMES
from torchett.model.causes import DOMAINS
from torchett.model.errors import InputError, RunError

ALL_GROUPS = (*GROUPS, HELD_IDLE)
_IN_WINDOW = {"lost": "rank_ns - effective_ns", "ett": "-ett_percent", "start": "time_to_start_ns"}
_IN_WINDOW |= {
    "recover": "time_to_recover_ns",
    "failures": "infra_failures + scheduler_failures",
}
ORDERS = tuple(_IN_WINDOW)
_LISTED = """
project, job, state, began, ended, ranks, attempts, ett_percent, rank_ns, effective_ns,
infra_failures, scheduler_failures, user_failures, time_to_start_ns, last_step, source
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One label's part of a fleet: its accounts, their sum, and how many jobs."""

    label: str | None
    jobs: int = 0
    tree: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # group → account → ns

    @property
    def groups(self) -> dict[str, int]:
        return {group: sum(self.tree.get(group, {}).values()) for group in ALL_GROUPS}

    @property
    def accounts(self) -> dict[str, int]:
        found = defaultdict[str, int](int)
        for accounts in self.tree.values():
            for name, ns in accounts.items():
                found[name] += ns
        return {name: ns for name, ns in found.items() if ns}

    @property
    def rank_ns(self) -> int:
        return sum(self.groups.values())

    @property
    def ett_percent(self) -> float:
        whole = self.rank_ns
        return 100 * self.groups["effective"] / whole if whole else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "jobs": self.jobs,
            "ett_percent": self.ett_percent,
            "rank_ns": self.rank_ns,
            "groups_ns": self.groups,
            "accounts_ns": self.accounts,
        }


def newest(fleet: Fleet, most: int, where: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The jobs that began last, newest first."""
    conditions, values = _where(where or {})
    wanted = None if where else fleet.newest_segments(most)
    sql = f"SELECT {_LISTED} FROM jobs {conditions} ORDER BY began DESC, project, job LIMIT ?"
    found: list[dict[str, Any]] = fleet.query(sql, [*values, most], named=wanted).to_pylist()
    return found


def shares(
    fleet: Fleet, by: str | None, span: Span, where: Mapping[str, str] | None = None
) -> list[Share]:
    """The fleet's time by label, the largest first; without a label: all of it, as one."""
    if span.by_day and span.end is None and not where and (by or "") in SUMMED:
        return _shares_by_day(fleet, by, span)
    return _shares_of(fleet, by, span, fleet.segments_since(span.begin), where)


def _shares_of(
    fleet: Fleet,
    by: str | None,
    span: Span,
    named: Sequence[tuple[str, str]],
    where: Mapping[str, str] | None = None,
) -> list[Share]:
    """The shares of these segments, from their rows."""
    table, time = ("days", "day") if span.by_day else ("hours", "hour")
    label, label_values = ("NULL", []) if by is None else _label(by)
    if by == "job":
        table, time = "job_hours", "hour"
    conditions, values = _where(where or {}, span, time)
    found = fleet.query(
        f"SELECT {label} AS label, account_group AS g, account AS a, sum(ns) AS ns"
        f" FROM {table} {conditions} GROUP BY ALL",
        [*label_values, *values],
        named=named,
    )
    trees: dict[str | None, dict[str, dict[str, int]]] = {}
    for row in found.to_pylist():
        of_group = trees.setdefault(row["label"], {}).setdefault(row["g"], {})
        of_group[row["a"]] = int(row["ns"])  # of many ranks in a year it takes more than 64 bits
    return _sorted(trees, _job_counts(fleet, by, span, where or {}, named))


def _shares_by_day(fleet: Fleet, by: str | None, span: Span) -> list[Share]:
    """The same from sums by day and label, as far as they are made."""
    named = fleet.segments_since(span.begin)
    known = LabelSums(fleet)
    trees: dict[str | None, dict[str, dict[str, int]]] = {}
    counts: dict[str | None, int] = {}
    since = None if span.begin is None else span.begin.date()
    sums = dict(known.sums(by or "", named, since))
    missing = known.missing(named)
    if missing:
        for part in _shares_of(fleet, by, span, missing):
            for group, accounts in part.tree.items():
                for name, ns in accounts.items():
                    key = (part.label, group, name)
                    sums[key] = sums.get(key, 0) + ns
            sums[part.label, JOBS, JOBS] = sums.get((part.label, JOBS, JOBS), 0) + part.jobs
    for (label, group, name), ns in sums.items():
        if group == JOBS:
            counts[label] = ns
        else:
            trees.setdefault(label, {}).setdefault(group, {})[name] = ns
    if span.begin is not None:
        counts = _job_counts(fleet, by, span, {}, named)
    return _sorted(trees, counts)


def _sorted(
    trees: Mapping[str | None, dict[str, dict[str, int]]], counts: Mapping[str | None, int]
) -> list[Share]:
    parts = [
        Share(label=label, jobs=counts.get(label, 0), tree=tree) for label, tree in trees.items()
    ]
    return sorted(parts, key=lambda part: (-part.rank_ns, part.label or ""))


def whole(parts: Sequence[Share]) -> Share:
    """The sum of shares."""
    tree: dict[str, dict[str, int]] = {}
    for part in parts:
        for group, accounts in part.tree.items():
            for name, ns in accounts.items():
                of_group = tree.setdefault(group, {})
                of_group[name] = of_group.get(name, 0) + ns
    return Share(label=None, jobs=sum(part.jobs for part in parts), tree=tree)


def worst(fleet: Fleet, order: str, most: int, span: Span) -> list[dict[str, Any]]:
    """Whole jobs that overlap the span, by what they lost; each with its largest loss."""
    conditions, values = _overlapping(span)
    losses = [group for group in ALL_GROUPS if group != "effective"]
    largest = "greatest(" + ", ".join(f"{group}_ns" for group in losses) + ")"
    cases = " ".join(f"WHEN {group}_ns = {largest} THEN '{group}'" for group in losses)
    sql = (
        f"SELECT {_LISTED}, rank_ns - effective_ns AS lost_ns, CASE {cases} END AS largest_loss,"
        f" {largest} AS largest_loss_ns FROM jobs {conditions}"
        f" ORDER BY {_IN_WINDOW[order]} DESC NULLS LAST, project, job LIMIT ?"
    )
    named = fleet.segments_since(span.begin)
    found: list[dict[str, Any]] = fleet.query(sql, [*values, most], named=named).to_pylist()
    return found


def job_report(fleet: Fleet, job: str, project: str | None = None) -> dict[str, Any]:
    """One job as `ett report --json` says it, from its rows."""
    known = fleet.state.rows(
        "SELECT project FROM jobs WHERE job = ? AND project = coalesce(?, project)", job, project
    )
    if not known:
        raise RunError(f"{job}: no such job in {fleet.folder}: `ett fleet ls` lists them")
    if len(known) > 1:
        names = ", ".join(row["project"] for row in known)
        raise InputError(
            f"{job}: several projects have a job of this name: add --project ({names})"
        )
    key = [known[0]["project"], job]
    named = list(fleet.segments_of(*key))
    (row,) = fleet.query(
        "SELECT * FROM jobs WHERE project = ? AND job = ?", key, named=named
    ).to_pylist()
    attempts = fleet.query(
        "SELECT * FROM attempts WHERE project = ? AND job = ? ORDER BY attempt", key, named=named
    ).to_pylist()
    accounts = defaultdict[str, int](int)
    for attempt in attempts:
        for name in (*NAMES, HELD_IDLE):
            accounts[name] += attempt[f"{name}_ns"]
        for name, ns in json.loads(attempt["own"] or "{}").items():
            accounts[name] += ns
    start = row["time_to_start_ns"]
    return {
        "job": job,
        "project": key[0],
        "state": row["state"],
        "ett_percent": row["ett_percent"],
        "window_s": row["window_ns"] / 1e9,
        "queue_s": row["queue_ns"] / 1e9,
        "ranks": row["ranks"],
        "attempts": row["attempts"],
        "failures": {domain: row[f"{domain}_failures"] for domain in DOMAINS},
        "time_to_start_s": None if start is None else start / 1e9,
        "time_to_recover_sum_s": row["time_to_recover_ns"] / 1e9,
        "recoveries": row["recoveries"],
        "at_risk_s": row["at_risk_ns"] / 1e9,
        "estimated_s": row["estimated_ns"] / 1e9,
        "requeue_s": row["requeue_ns"] / 1e9,
        "last_step": row["last_step"],
        "rank_seconds": row["rank_ns"] / 1e9,
        "accounts": {name: ns / 1e9 for name, ns in accounts.items() if ns},
        "groups": {
            group: row[f"{group}_ns"] / 1e9
            for group in ALL_GROUPS
            if group != HELD_IDLE or row[f"{group}_ns"]
        },
        "labels": {name: row[name] for name in LABELS if row[name] is not None}
        | json.loads(row["labels"] or "{}"),
        "source": row["source"],
        "path": row["path"],
    }


def _job_counts(
    fleet: Fleet,
    by: str | None,
    span: Span,
    where: Mapping[str, str],
    named: Sequence[tuple[str, str]],
) -> dict[str | None, int]:
    label, label_values = ("NULL", []) if by is None else _label(by)
    conditions, values = _overlapping(span, where)
    sql = f"SELECT {label} AS label, count(*) AS n FROM jobs {conditions} GROUP BY ALL"
    found = fleet.query(sql, [*label_values, *values], named=named).to_pylist()
    return {row["label"]: row["n"] for row in found}


def _label(name: str) -> tuple[str, list[Any]]:
    """The SQL of a label, and its parameters."""
    if name in (*LABELS, "project", "job"):
        return f'"{name}"', []
    return "json_extract_string(labels, ?)", [f'$."{_json_key(name)}"']


def _json_key(name: str) -> str:
    if '"' in name or "\\" in name or not name:
        raise InputError(f"--by: expected a label, found '{name}'")
    return name


def _where(
    where: Mapping[str, str], span: Span | None = None, time: str = ""
) -> tuple[str, list[Any]]:
    found: list[str] = []
    values: list[Any] = []
    for name, value in where.items():
        sql, params = _label(name)
        found.append(f"{sql} = ?")
        values += [*params, value]
    if span is not None and span.begin is not None:
        found.append(f"{time} >= ?")
        values.append(span.begin)
    if span is not None and span.end is not None:
        found.append(f"{time} < ?")
        values.append(span.end)
    return ("WHERE " + " AND ".join(found) if found else ""), values


def _overlapping(span: Span, where: Mapping[str, str] | None = None) -> tuple[str, list[Any]]:
    """The condition that a job held hardware in the span."""
    condition, values = _where(where or {})
    found = [condition.removeprefix("WHERE ")] if condition else []
    if span.begin is not None:
        found.append("ended >= ?")
        values.append(span.begin)
    if span.end is not None:
        found.append("began < ?")
        values.append(span.end)
    return ("WHERE " + " AND ".join(found) if found else ""), values
