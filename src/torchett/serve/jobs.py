"""The list of jobs as the page shows it: filtered by words, sorted by a column, page by page.

q=gpt team:ads live     every word must occur in the name, a label or the state; KEY:VALUE a label
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torchett.serve.runs import JobRow

PAGE = 100
COLUMNS = (
    "name", "state", "began", "lasted", "ranks", "attempts", "ett", "failures", "tts", "ttr",
    "hours",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """One page of the list."""

    rows: tuple[JobRow, ...]
    total: int
    found: int
    words: str
    sort: str
    page: int

    @property
    def pages(self) -> int:
        return max(1, -(-self.found // PAGE))

    def to_json(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "found": self.found,
            "page": self.page,
            "pages": self.pages,
            "q": self.words,
            "sort": self.sort,
            "jobs": [asdict(row) for row in self.rows],
        }


def job_list(rows: Iterable[JobRow], query: Mapping[str, str]) -> JobList:
    """What this query string asks for; invalid values are ignored."""
    everything = list(rows)
    words = query.get("q", "").strip()[:200]
    found = [row for row in everything if all(_fits(row, word) for word in words.lower().split())]
    sort = query.get("sort", "")
    if sort.lstrip("-") in COLUMNS:
        found = _sorted(found, sort)
    else:
        sort = ""
    page = min(max(1, _number(query.get("page", "1"))), max(1, -(-len(found) // PAGE)))
    return JobList(
        rows=tuple(found[(page - 1) * PAGE : page * PAGE]),
        total=len(everything),
        found=len(found),
        words=words,
        sort=sort,
        page=page,
    )


def _fits(row: JobRow, word: str) -> bool:
    key, colon, value = word.partition(":")
    if colon and key in row.labels:
        return value in str(row.labels[key]).lower()
    texts = (row.key, row.name, row.state, *row.labels.values())
    return any(word in str(text).lower() for text in texts)


def _sorted(rows: list[JobRow], sort: str) -> list[JobRow]:
    """By a column; what has no value comes last, whichever way."""
    column, down = sort.lstrip("-"), sort.startswith("-")

    def value(row: JobRow) -> Any:
        lasted = None if row.began_s is None else (row.ended_s or 0) - row.began_s
        return {
            "name": row.name.lower(), "state": row.state, "began": row.began_s, "lasted": lasted,
            "ranks": row.ranks, "attempts": row.attempts, "ett": row.ett_percent,
            "failures": row.failures, "tts": row.time_to_start_s, "ttr": row.time_to_recover_s,
            "hours": row.rank_hours,
        }[column]  # fmt: skip

    known = [row for row in rows if value(row) is not None]
    return sorted(known, key=value, reverse=down) + [row for row in rows if value(row) is None]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 1
