"""The table of rules: which message means which category, read from TOML.

The shipped rules are `rules/*.toml`, one file for each source system. Users add files of the same
form (`ETT_FAILURE_RULES`, `--rules`); their rules are tried before the shipped ones.

    system = "storage"                        # where the messages come from
    source = "errno texts"                    # the document or file that they are drawn from

    [[rule]]
    name = "no-space"                         # unique within the system
    category = "storage_full"                 # a category of the ledger, or "unknown"
    pattern = ['No space left on device']     # regular expressions, any of them, case ignored
    example = "OSError: [Errno 28] …"         # a line that it fits
    role = "initiating"                       # the default; or "cascade", "teardown"
    strength = "specific"                     # the default; or "decisive", "generic"
    outlook = "stop"                          # the default is the category's
    domain = "infra"                          # only where the category is "unknown"
    raised_in = 'site-packages/botocore/'     # only for exceptions raised in such a "file function"

    xid = [{code = 79, name = "…", bucket = "RESTART_BM", category = "gpu_fell_off_bus"}]
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from torchett.failures.literals import required_texts
from torchett.failures.vocabulary import (
    OUTLOOKS,
    UNKNOWN,
    Outlook,
    Role,
    Strength,
    VerdictDomain,
    domain_of_category,
)
from torchett.model.causes import DOMAINS
from torchett.model.errors import InputError

SHIPPED: Final = Path(__file__).parent / "rules"
_RULE_KEYS: Final = {
    "name", "category", "pattern", "example", "role", "strength", "outlook", "source",
    "domain", "raised_in",
}  # fmt: skip
_E = TypeVar("_E", bound=Enum)
# What the catalogue's immediate action needs; an action that is not listed concerns the GPU.
_BUCKETS: Final = {
    "IGNORE": Outlook.RESTART_NOW,
    "RESTART_APP": Outlook.RESTART_NOW,
    "WORKFLOW_XID_45": Outlook.RESTART_NOW,
    "XID_154": Outlook.RESTART_NOW,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A regular expression; a line it fits contains one of the texts, if there are any.

    It is compiled when a line with such a text is found: most never are.
    """

    text: str
    texts: tuple[str, ...]

    @property
    def regex(self) -> re.Pattern[str]:
        return _compiled(self.text)

    @property
    def loose(self) -> re.Pattern[str]:
        """The pattern without its ^: it also fits a line with prefixes, at the begin of a word."""
        bare = self.text.removeprefix("^")
        return _compiled(bare if bare == self.text else rf"(?<![\w.])(?:{bare})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table."""

    name: str  # system/name
    category: str
    role: Role
    strength: Strength
    outlook: Outlook
    patterns: tuple[Pattern, ...]
    source: str
    example: str
    domain: VerdictDomain
    raised_in: str = ""  # a regular expression; anywhere if empty

    def fits_place(self, raised_in: str) -> bool:
        """Whether the rule holds for an exception raised there, in `FILE FUNCTION`, if known."""
        return not self.raised_in or bool(_compiled(self.raised_in).search(raised_in))


@cache
def shipped_rules() -> tuple[Rule, ...]:
    """The rules of this package.

    Of an Xid, the number says more than the words after it. Kinds of evidence come last.
    """
    order = {"xid": 0, "kinds": 2}
    paths = sorted(SHIPPED.glob("*.toml"), key=lambda path: (order.get(path.stem, 1), path.stem))
    return tuple(rule for path in paths for rule in read_rules(path))


def rules_with(paths: Iterable[Path]) -> tuple[Rule, ...]:
    """The rules of these files, then the shipped ones."""
    return (*(rule for path in paths for rule in read_rules(path)), *shipped_rules())


def read_rules(path: Path) -> list[Rule]:
    """The rules of one file; InputError says which row is wrong and what was expected."""
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: rules not readable: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: expected rules in TOML: {error}") from None
    rows, xids = table.get("rule", []), table.get("xid", [])
    if not isinstance(rows, list) or not isinstance(xids, list) or not (rows or xids):
        raise InputError(f"{path}: expected [[rule]] rows, found {', '.join(table) or 'nothing'}")
    system, source = str(table.get("system", path.stem)), str(table.get("source", ""))
    found = [_rule(path, number, row, system, source) for number, row in enumerate(rows, 1)]
    found += [_xid(path, number, row, source) for number, row in enumerate(xids, 1)]
    return found


def _rule(path: Path, number: int, row: Any, system: str, source: str) -> Rule:
    where = f"{path}: rule {number}"
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected a table, found {row!r}")
    where += f" ({row['name']})" if isinstance(row.get("name"), str) else ""
    if unknown := set(row) - _RULE_KEYS:
        raise InputError(f"{where}: unknown key {min(unknown)}; known: {', '.join(_RULE_KEYS)}")
    category = _text(where, row, "category")
    patterns = row.get("pattern")
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not patterns or not isinstance(patterns, list):
        raise InputError(f"{where}: expected pattern = [regular expressions], found {patterns!r}")
    return Rule(
        name=f"{system}/{_text(where, row, 'name')}",
        category=_category(where, category),
        role=_member(where, Role, row.get("role", "initiating")),
        strength=_member(where, Strength, row.get("strength", "specific")),
        outlook=_member(where, Outlook, row.get("outlook", OUTLOOKS[category].value)),
        patterns=tuple(_pattern(where, one) for one in patterns),
        source=str(row.get("source", source)),
        example=str(row.get("example", "")),
        domain=_domain(where, category, row.get("domain")),
        raised_in=_regex(where, row.get("raised_in", "")),
    )


def _domain(where: str, category: str, said: object) -> VerdictDomain:
    """The domain of the category, or what a row says where the category is unknown."""
    if said is None:
        return domain_of_category(category)
    for domain in DOMAINS:
        if said == domain and category == UNKNOWN:
            return domain
    raise InputError(
        f"{where}: unexpected domain {said!r}: the category has one, or it is none of "
        f"{', '.join(DOMAINS)}"
    )


def _xid(path: Path, number: int, row: Any, source: str) -> Rule:
    """A row of the Xid catalogue. What NVIDIA says to ignore is not what began a failure."""
    where = f"{path}: xid {number}"
    if not isinstance(row, dict) or not isinstance(row.get("code"), int):
        raise InputError(f"{where}: expected code, name, bucket and category, found {row!r}")
    code, bucket = row["code"], _text(where, row, "bucket")
    category = _category(where, _text(where, row, "category"))
    aside = bucket == "IGNORE" or category == UNKNOWN
    usual = Strength.SPECIFIC if aside or bucket == "RESTART_APP" else Strength.DECISIVE
    return Rule(
        name=f"xid/{code}",
        category=category,
        role=Role.CASCADE if aside else Role.INITIATING,
        strength=_member(where, Strength, row.get("strength", usual.value)),
        outlook=_BUCKETS.get(bucket, Outlook.REPLACE_NODE),
        patterns=(_pattern(where, rf"\bXid(?: \(.*?\))?(?: errors?| code)?[:= -]+{code}\b"),),
        source=f"{source}, {_text(where, row, 'name')}",
        example=f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=4711, name=python, {row['name']}",
        domain="infra" if category == UNKNOWN else domain_of_category(category),
    )


def _text(where: str, row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise InputError(f"{where}: expected {key} = a text, found {value!r}")
    return value


def _category(where: str, value: str) -> str:
    if value not in OUTLOOKS:
        raise InputError(f"{where}: unknown category {value}; known: {', '.join(sorted(OUTLOOKS))}")
    return value


def _member(where: str, kind: type[_E], value: object) -> _E:
    for member in kind:
        if member.value == value:
            return member
    known = ", ".join(str(member.value) for member in kind)
    raise InputError(f"{where}: unknown {kind.__name__.lower()} {value!r}; known: {known}")


def _pattern(where: str, text: object) -> Pattern:
    return Pattern(text=_regex(where, text), texts=required_texts(str(text)))


def _regex(where: str, text: object) -> str:
    """A regular expression that can be compiled. Tests compile those of this package."""
    try:
        if not where.startswith(str(SHIPPED)):
            _compiled(str(text))
    except re.error as error:
        raise InputError(
            f"{where}: pattern {text!r} is not a regular expression: {error}"
        ) from None
    return str(text)


@cache
def _compiled(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)
