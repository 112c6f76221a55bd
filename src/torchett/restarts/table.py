"""The restart policy as a table: which failure gets which verdict, and how often. Read from TOML.

    [node]
    failures = 3                 # of several nodes, one that began so many is replaced

    [[restart]]                  # the first row that fits decides
    name = "my-storage"          # shown wherever the row decided
    cause = ["storage_io"]       # categories, domains (infra, scheduler, user, unknown), or "*"
    text = 'lustre'              # regular expression that the evidence line must also fit
    verdict = "back-off"         # restart-now, back-off, replace-node, stop; default: the rule's
    budget = 4                   # so often; without: as often as --max-restarts says
    same_place = 1               # so often for the same error at the same place
    then = "stop"                # the verdict after that
    pauses_s = [2, 10, 60]       # before the first, second, … restart in a row
    charge = true                # false: it does not count against --max-restarts
    why = "…"                    # what the verdict adds to its reason

Budgets count restarts without durable progress: a checkpoint of a later step gives all back.
The shipped table is `default.toml`.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from torchett.failures.vocabulary import OUTLOOKS, UNKNOWN
from torchett.model.causes import DOMAINS
from torchett.model.errors import InputError
from torchett.model.restarts import Outlook

_SHIPPED: Final = Path(__file__).with_name("default.toml")
_KEYS: Final = (
    "name", "cause", "text", "verdict", "budget", "same_place", "then", "pauses_s", "charge", "why",
)  # fmt: skip
_CAUSES: Final = {"*", UNKNOWN, *DOMAINS, *OUTLOOKS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table."""

    name: str
    causes: frozenset[str]
    text: re.Pattern[str] | None = None
    verdict: Outlook | None = None
    budget: int | None = None
    same_place: int | None = None
    then: Outlook = Outlook.STOP
    pauses_s: tuple[float, ...] = ()
    charge: bool = True
    why: str = ""

    def fits(self, category: str, domain: str, text: str) -> bool:
        """Whether this row is about such a failure."""
        if not self.causes & {"*", category, domain}:
            return False
        return self.text is None or self.text.search(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows in the order in which they are tried."""

    rows: tuple[Row, ...]
    node_failures: int

    def row(self, category: str, domain: str, text: str) -> Row:
        """The first row that fits; the shipped table's last fits everything."""
        return next(row for row in self.rows if row.fits(category, domain, text))


def table_with(files: Iterable[Path]) -> Table:
    """The shipped table after the rows of these files; InputError says what is wrong in one."""
    rows: list[Row] = []
    node_failures: int | None = None
    for path in files:
        own, failures = _read(path)
        rows += own
        node_failures = failures if node_failures is None else node_failures
    shipped, usual = _shipped()
    return Table(
        rows=(*rows, *shipped), node_failures=usual if node_failures is None else node_failures
    )


@cache
def _shipped() -> tuple[tuple[Row, ...], int]:
    rows, failures = _read(_SHIPPED)
    assert failures is not None
    return tuple(rows), failures


def _read(path: Path) -> tuple[list[Row], int | None]:
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: restart policy not readable: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: expected a restart policy in TOML: {error}") from None
    if unknown := set(content) - {"restart", "node"}:
        raise InputError(f"{path}: expected [[restart]] and [node], found {min(unknown)}")
    node, rows = content.get("node", {}), content.get("restart", [])
    if not isinstance(node, dict) or not isinstance(rows, list):
        raise InputError(f"{path}: expected [[restart]] rows and a table [node]")
    failures = node.get("failures")
    if set(node) - {"failures"} or not (failures is None or _is_count(failures)):
        raise InputError(f"{path}: [node]: expected failures = a whole number, found {node}")
    return [_row(path, number, row) for number, row in enumerate(rows, 1)], failures


def _row(path: Path, number: int, row: Any) -> Row:
    where = f"{path}: restart {number}"
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected a table, found {row!r}")
    name = str(row.get("name", f"{path.stem}-{number}"))
    where += f" ({name})"
    if unknown := set(row) - set(_KEYS):
        raise InputError(f"{where}: unknown key {min(unknown)}; known: {', '.join(_KEYS)}")
    for key in ("budget", "same_place"):
        if key in row and not _is_count(row[key]):
            raise InputError(f"{where}: expected {key} = a whole number, found {row[key]!r}")
    if not isinstance(row.get("charge", True), bool):
        raise InputError(f"{where}: expected charge = true or false, found {row['charge']!r}")
    return Row(
        name=name,
        causes=_causes(where, row.get("cause")),
        text=_text(where, row.get("text")),
        verdict=_outlook(where, row["verdict"]) if "verdict" in row else None,
        budget=row.get("budget"),
        same_place=row.get("same_place"),
        then=_outlook(where, row.get("then", "stop")),
        pauses_s=_pauses(where, row.get("pauses_s", [])),
        charge=row.get("charge", True),
        why=str(row.get("why", "")),
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _causes(where: str, value: object) -> frozenset[str]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not given:
        raise InputError(f"{where}: expected cause = [categories or domains], found {value!r}")
    for cause in given:
        if cause not in _CAUSES:
            known = ", ".join(sorted(_CAUSES))
            raise InputError(f"{where}: unknown cause {cause!r}; known: {known}")
    return frozenset(given)


def _text(where: str, value: object) -> re.Pattern[str] | None:
    if value is None:
        return None
    try:
        return re.compile(str(value))
    except re.error as error:
        raise InputError(f"{where}: text {value!r} is no regular expression: {error}") from None


def _outlook(where: str, value: object) -> Outlook:
    for outlook in Outlook:
        if outlook.value == value:
            return outlook
    known = ", ".join(outlook.value for outlook in Outlook)
    raise InputError(f"{where}: unknown verdict {value!r}; known: {known}")


def _pauses(where: str, value: object) -> tuple[float, ...]:
    if isinstance(value, list) and all(
        isinstance(one, int | float) and not isinstance(one, bool) and one >= 0 for one in value
    ):
        return tuple(float(one) for one in value)
    raise InputError(f"{where}: expected pauses_s = [seconds], found {value!r}")
