"""Two windows of days of a fleet side by side, as two jobs are.

/compare?a=2026-11-01..2026-11-07&b=2026-11-08..2026-11-14&team=ads      last days included
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from torchett.model.accounts import GROUPS
from torchett.model.durations import duration
from torchett.model.errors import InputError
from torchett.report.comparison import Move
from torchett.serve.compare import Comparison, comparison_of
from torchett.serve.fleet.filters import KEYS, LONGEST
from torchett.serve.fleet.source import FleetSource, Row

_DAYS = re.compile(r"(\d{4}-\d\d-\d\d)\.\.(\d{4}-\d\d-\d\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Whole days of a fleet, the last one included, and the labels that jobs must have."""

    first: date
    last: date
    labels: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.first}..{self.last}"

    @property
    def end(self) -> date:
        return self.last + timedelta(days=1)

    def where(self, time: str) -> tuple[str, list[Any]]:
        """A WHERE clause over the column of times `time`, and its parameters."""
        clauses = [f"{time} >= ?", f"{time} < ?", *(f'"{name}" = ?' for name in self.labels)]
        return " AND ".join(clauses), [self.first, self.end, *self.labels.values()]


def is_window(said: str) -> bool:
    """Whether this is `DAY..DAY` and not the name of a job."""
    return _DAYS.fullmatch(said) is not None


def window(said: str, query: Mapping[str, str]) -> Window:
    """The window that `DAY..DAY` says, for jobs with the labels of the query."""
    found = _DAYS.fullmatch(said)
    try:
        days = [date.fromisoformat(text) for text in found.groups()] if found else []
    except ValueError:
        days = []
    if len(days) != 2 or days[1] < days[0]:
        raise InputError(f"compare: expected days as 2026-11-01..2026-11-07, found {said[:60]}")
    labels = {key: query[key][:LONGEST] for key in KEYS if query.get(key)}
    return Window(first=days[0], last=days[1], labels=labels)


def compare_windows(source: FleetSource, a: Window, b: Window) -> Comparison:
    """What changed from window A to window B, in points of each one's rank-time."""
    before, after = _accounts(source, a), _accounts(source, b)
    wholes = sum(before.values()), sum(after.values())
    moves = [
        _move(key, before.get(key, 0.0), after.get(key, 0.0), wholes) for key in {**before, **after}
    ]
    return comparison_of(
        (str(a), str(b)),
        sorted(moves, key=lambda move: (-abs(move.points), move.account)),
        _figures(source, a, b, wholes),
    )


def windows_of(
    source: FleetSource,
) -> Callable[[str, str, Mapping[str, str]], Comparison | None]:
    """What compares two windows of this fleet; None where jobs are named."""

    def compared(a: str, b: str, query: Mapping[str, str]) -> Comparison | None:
        if not (is_window(a) and is_window(b)):
            return None
        return compare_windows(source, window(a, query), window(b, query))

    return compared


def _accounts(source: FleetSource, window: Window) -> dict[tuple[str, str], float]:
    """Rank-seconds by group and account."""
    where, params = window.where("day")
    rows = source.rows(
        "SELECT account_group, account, sum(ns)::DOUBLE / 1e9 AS s FROM days"
        f" WHERE {where} GROUP BY ALL",
        params,
    )
    return {(row["account_group"], row["account"]): row["s"] for row in rows}


def _move(key: tuple[str, str], a: float, b: float, wholes: tuple[float, float]) -> Move:
    group, account = key
    return Move(
        group=group if group in GROUPS else account,
        account=account,
        a_s=a,
        b_s=b,
        a_percent=100 * a / wholes[0] if wholes[0] else 0.0,
        b_percent=100 * b / wholes[1] if wholes[1] else 0.0,
    )


def _figures(
    source: FleetSource, a: Window, b: Window, wholes: tuple[float, float]
) -> list[tuple[str, str, str]]:
    ours, theirs = _sums(source, a), _sums(source, b)

    def time(row: Row, name: str) -> str:
        return "–" if row[name] is None else duration(round(row[name]))

    return [
        ("Time to Start, median", time(ours, "tts"), time(theirs, "tts")),
        ("Time to Recover, mean", time(ours, "ttr"), time(theirs, "ttr")),
        ("Failures", f"{ours['failures'] or 0:,}", f"{theirs['failures'] or 0:,}"),
        ("Jobs that ended", f"{ours['jobs']:,}", f"{theirs['jobs']:,}"),
        ("Rank-hours", f"{wholes[0] / 3600:,.0f}", f"{wholes[1] / 3600:,.0f}"),
    ]


def _sums(source: FleetSource, window: Window) -> Row:
    where, params = window.where("ended")
    return source.rows(
        "SELECT count(*) AS jobs, median(time_to_start_ns) AS tts,"
        " sum(time_to_recover_ns)::DOUBLE / nullif(sum(recoveries), 0)::DOUBLE AS ttr,"
        " sum(infra_failures + scheduler_failures)::BIGINT AS failures"
        f" FROM jobs WHERE {where}",
        params,
    )[0]
