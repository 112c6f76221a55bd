"""Limits on a comparison, for CI: `recover>10s`, `ett<85%`, `data_wait>+5s`, `pt2_compile>1.5x`.

NAME OP VALUE           holds of job B
NAME OP +VALUE          holds of the change from A to B
NAME OP VALUEx          holds of the ratio B / A

Names: ett, tts (Time to Start), ttr (mean Time to Recover), failures, wall, and every group and
account. Units: s, min, h (rank-seconds of accounts, wall seconds of figures), % of rank-seconds.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from torchett.ledger.ledger import Ledger
from torchett.model.accounts import GROUPS, NAMES, is_own
from torchett.model.errors import InputError

_LIMIT = re.compile(
    r"\s*(?P<name>[A-Za-z_][\w-]*)\s*(?P<op><=|>=|<|>)\s*"
    r"(?P<sign>[+-]?)(?P<value>\d+(?:\.\d+)?)\s*(?P<unit>s|min|h|%|x|)\s*"
)
_SECONDS = {"s": 1.0, "": 1.0, "min": 60.0, "h": 3600.0}
_FIGURES = ("ett", "tts", "ttr", "failures", "wall")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit, as it was written and as it is checked."""

    text: str
    name: str
    op: str
    value: float
    unit: str  # s, %, x or nothing
    is_change: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A limit that holds, with the value that was seen."""

    limit: Limit
    seen: float

    def __str__(self) -> str:
        name, unit = self.limit.name, self.limit.unit
        if self.limit.is_change:
            points = " points" if unit == "%" or name == "ett" else unit
            return f"{self.limit.text} holds: {name} changed by {self.seen:+.4g}{points}"
        if unit == "x":
            return f"{self.limit.text} holds: {name} is {self.seen:.4g} times that of A"
        return f"{self.limit.text} holds: {name} is {self.seen:.4g}{'%' if name == 'ett' else unit}"


def parse_limit(text: str) -> Limit:
    """The limit that this text says, or InputError."""
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise InputError(
            f"--fail-if: expected NAME OP VALUE, such as 'recover>10s', found '{text}'"
        )
    name, unit = found["name"], found["unit"]
    if name not in (*_FIGURES, *GROUPS, *NAMES) and not is_own(name):
        raise InputError(
            f"--fail-if: expected one of {', '.join(_FIGURES)}, a group or an account,"
            f" found '{name}'"
        )
    if name in ("ett", "failures") and unit not in ("%" if name == "ett" else "", "x", ""):
        raise InputError(f"--fail-if: '{name}' has no unit '{unit}', found '{text}'")
    if name in ("tts", "ttr", "wall") and unit == "%":
        raise InputError(f"--fail-if: '{name}' is in seconds, found '{text}'")
    value = float(found["value"]) * _SECONDS.get(unit, 1.0)
    return Limit(
        text=text.strip(),
        name=name,
        op=found["op"],
        value=-value if found["sign"] == "-" else value,
        unit=unit if unit in ("%", "x") else ("" if name in ("failures", "ett") else "s"),
        is_change=bool(found["sign"]),
    )


def breaches(limits: list[Limit], a: Ledger, b: Ledger) -> list[Breach]:
    """The limits that hold of these two jobs."""
    return [breach for limit in limits if (breach := _breach(limit, a, b)) is not None]


def _breach(limit: Limit, a: Ledger, b: Ledger) -> Breach | None:
    share = limit.unit == "%"
    ours, theirs = (_value(limit.name, ledger, share) for ledger in (a, b))
    seen = theirs
    if limit.is_change:
        seen = theirs - ours
    elif limit.unit == "x":
        seen = theirs / ours if ours else (float("inf") if theirs else 1.0)
    holds: dict[str, Callable[[float, float], bool]] = {
        "<": float.__lt__, "<=": float.__le__, ">": float.__gt__, ">=": float.__ge__,
    }  # fmt: skip
    if holds[limit.op](float(seen), limit.value):
        return Breach(limit=limit, seen=seen)
    return None


def _value(name: str, ledger: Ledger, share: bool) -> float:
    """A figure of one job; without a start it is infinite, without a recovery 0."""
    recover = ledger.time_to_recover_ns
    figures: dict[str, Callable[[], float]] = {
        "ett": lambda: ledger.ett_percent,
        "tts": lambda: (
            float("inf") if ledger.time_to_start_ns is None else ledger.time_to_start_ns / 1e9
        ),
        "ttr": lambda: sum(recover) / len(recover) / 1e9 if recover else 0.0,
        "failures": lambda: float(ledger.number_of_failures),
        "wall": lambda: ledger.window_ns / 1e9,
    }
    if name in figures:
        return figures[name]()
    ns = ledger.groups.get(name)
    if ns is None or (name in ledger.accounts and name not in GROUPS):
        ns = ledger.accounts.get(name, 0)
    if share:
        return 100 * ns / ledger.rank_ns if ledger.rank_ns else 0.0
    return ns / 1e9
