"""Windows of time that a fleet is asked about: a rolling day, week or month, or since a date.

Rows are kept by the hour. A rolling window begins with the whole hour that it reaches into.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from torchett.model.errors import InputError

ROLLING = {"day": timedelta(days=1), "week": timedelta(days=7), "month": timedelta(days=30)}
_DAYS_FROM = timedelta(days=45)  # longer windows are answered from the sums by day


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From (inclusive) to (exclusive), in UTC; None where it is open."""

    begin: datetime | None = None
    end: datetime | None = None

    @property
    def by_day(self) -> bool:
        """Whether the sums by day can answer: its edges are midnights, and it is long."""
        if any(edge is not None and edge.time() != datetime.min.time() for edge in self.edges):
            return False
        if self.begin is None:
            return True
        return (self.end or datetime.max) - self.begin >= _DAYS_FROM

    @property
    def edges(self) -> tuple[datetime | None, datetime | None]:
        return self.begin, self.end

    def to_json(self) -> dict[str, str | None]:
        begin, end = (None if edge is None else f"{edge.isoformat()}Z" for edge in self.edges)
        return {"from": begin, "until": end}


def window_of(name: str | None, since: str | None, until: str | None, now: datetime) -> Span:
    """The span that `--window`, `--since` and `--until` mean; `now` is UTC without a zone."""
    end = None if until is None else parsed_time(until, "--until")
    if since is not None:
        if name not in (None, "all"):
            raise InputError(f"--since {since}: goes without --window {name}: drop one")
        begin = parsed_time(since, "--since")
    elif name in (None, "all"):
        begin = None
    else:
        whole = (end or now) - ROLLING[str(name)]
        begin = whole.replace(minute=0, second=0, microsecond=0)
    if begin is not None and end is not None and end <= begin:
        raise InputError(f"--until {until}: expected a time after {begin.isoformat()}")
    return Span(begin=begin, end=end)


def parsed_time(text: str, option: str) -> datetime:
    """A date or a time as people write it (ISO 8601; UTC unless it says otherwise)."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{option}: expected a date like 2026-11-19, found '{text}'") from None
    return found.astimezone(UTC).replace(tzinfo=None) if found.tzinfo else found


def now_utc() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)
