"""The series that are watched: the share of each account in each class of jobs, hour by hour.

A class is what jobs with the same values of some labels are (team and model, unless said
otherwise). All of recovery counts as one account, `recovery`; a fall of effective time shows as a
rise of what took its place.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from torchett.fleet.detector.cusum import DAY, Floats, Ints
from torchett.fleet.fleet import Fleet

RECOVERY = "recovery"
ACCOUNT_SQL = (
    f"CASE WHEN account_group IN ('recover') THEN '{RECOVERY}' ELSE account END"  # of the view
)
_MOST_CLASSES = 200  # those that hold most hardware

ClassKey = tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """shares: (class × account) × hours; row r is account `r % len(accounts)`."""

    labels: tuple[str, ...]
    classes: tuple[ClassKey, ...]
    accounts: tuple[str, ...]
    first: datetime  # the first hour
    shares: Floats
    weights: Floats  # rank-hours of the class

    @property
    def class_of(self) -> Ints:
        return np.repeat(np.arange(len(self.classes)), len(self.accounts))

    def hour(self, place: int) -> datetime:
        return self.first + timedelta(hours=place)

    def named(self, row: int) -> tuple[dict[str, str], str]:
        """The class of a row as labels, and its account."""
        place, account = divmod(row, len(self.accounts))
        known = zip(self.labels, self.classes[place], strict=True)
        return {k: v for k, v in known if v is not None}, self.accounts[account]


def read_series(fleet: Fleet, labels: tuple[str, ...], now: datetime, days: int) -> Series:
    """The last whole hours of the fleet; the hour that `now` falls in is not over yet."""
    end = now.replace(minute=0, second=0, microsecond=0)
    first = end - timedelta(hours=days * DAY)
    columns = ", ".join(f'"{name}"' for name in labels)
    keys = f"{columns}, " if columns else ""
    table = fleet.query(
        f"SELECT {keys}date_diff('hour', ?::TIMESTAMP, hour) AS at, {ACCOUNT_SQL} AS name,"
        " sum(ns)::DOUBLE / 3.6e12 AS hours FROM hours WHERE hour >= ? AND hour < ?"
        " GROUP BY ALL",
        [first, first, end],
    )
    rows = list(zip(*(table[name].to_pylist() for name in labels), strict=True))
    if not labels:
        rows = [()] * len(table)
    return _series(
        labels, first, days * DAY, rows, table["name"].to_pylist(), table["at"], table["hours"]
    )


def _series(
    labels: tuple[str, ...],
    first: datetime,
    length: int,
    keys: list[ClassKey],
    names: list[str],
    at: Any,
    hours: Any,
) -> Series:
    amount = np.asarray(hours.to_numpy(), dtype=np.float64)
    held: dict[ClassKey, float] = {}
    for key, value in zip(keys, amount.tolist(), strict=True):
        held[key] = held.get(key, 0.0) + value
    classes = sorted(held, key=lambda key: -held[key])[:_MOST_CLASSES]
    accounts = sorted(set(names) - {"effective"})
    class_at = {key: i for i, key in enumerate(classes)}
    account_at = {name: i for i, name in enumerate(accounts)}
    rows = np.array([class_at.get(key, -1) for key in keys], dtype=np.int64)
    columns = np.array([account_at.get(name, -1) for name in names], dtype=np.int64)
    place = np.asarray(at.to_numpy(), dtype=np.int64)
    weights = np.zeros((max(len(classes), 1), length))
    spent = np.zeros((max(len(classes), 1), max(len(accounts), 1), length))
    mine = rows >= 0
    np.add.at(weights, (rows[mine], place[mine]), amount[mine])
    mine &= columns >= 0
    np.add.at(spent, (rows[mine], columns[mine], place[mine]), amount[mine])
    shares = spent / np.maximum(weights, 1e-12)[:, None, :]
    flat = shares.reshape(-1, length)
    return Series(
        labels=labels,
        classes=tuple(classes) or ((None,) * len(labels),),
        accounts=tuple(accounts) or ("none",),
        first=first,
        shares=flat,
        weights=np.repeat(weights, max(len(accounts), 1), axis=0),
    )
