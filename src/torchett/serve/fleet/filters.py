"""Which part of a fleet a page shows: labels and days of its URL, and the SQL for them.

/fleet?team=ads&torch=2.15&days=30      an empty value is not said
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from torchett.fleet.schema import LABELS

KEYS = ("project", *LABELS)
SPANS = (7, 30, 90, 365)
LONGEST = 300  # of a label's value; longer ones are shown cut, and not offered


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Labels that jobs must have, and how far back."""

    labels: Mapping[str, str]
    days: int
    until: datetime

    @property
    def since(self) -> datetime:
        """The first midnight that is shown."""
        midnight = self.until.replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight - timedelta(days=self.days - 1)

    def where(self, time: str) -> tuple[str, list[Any]]:
        """A WHERE clause over the column of times `time`, and its parameters."""
        clauses, params = [f"{time} >= ?"], [self.since]
        for name, value in self.labels.items():
            clauses.append(f'"{name}" = ?')
            params.append(value)  # type: ignore[arg-type]
        return " AND ".join(clauses), params

    def query(self, **change: str | None) -> str:
        """The URL's query with some keys changed; None takes one away."""
        values: dict[str, str] = dict(self.labels)
        if self.days != 90:
            values["days"] = str(self.days)
        for key, value in change.items():
            values.pop(key, None)
            if value is not None:
                values[key] = value
        return urlencode(values)


def filters(query: Mapping[str, str], now_s: float) -> Filters:
    """What this query string asks for; invalid values are ignored."""
    labels = {key: query[key][:LONGEST] for key in KEYS if query.get(key)}
    said = query.get("days", "")
    days = int(said) if said.isascii() and said.isdigit() and len(said) < 5 else 90
    until = datetime.fromtimestamp(now_s, UTC).replace(tzinfo=None)
    return Filters(labels=labels, days=min(max(days, 1), 1096), until=until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A label with the values that a reader may choose from, the chosen one first."""

    name: str
    values: Sequence[str]
    chosen: str
