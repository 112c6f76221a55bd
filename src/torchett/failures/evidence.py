"""Which lines of a text say something about a failure: each with its rule, place, role and rank.

    text ── texts that rules require, found in it ──► lines ── patterns ──► evidence

One line is evidence for one rule at most: the strongest that fits it, so that the last line of a
traceback which names NCCL is not also an exception of unknown origin. No evidence are:

- lines of source code that a traceback prints, because the text is in the program, not the event;
- lines that an earlier attempt, which went well, has printed too (`usual`);
- DEBUG lines, and NCCL's INFO lines: what went wrong it prints as WARN too.

What a program says of an attempt that it will repeat, or at level INFO, is weak: it counts only
where nothing else does.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from torchett.failures.elastic import read_summary
from torchett.failures.line_shapes import LineShapes
from torchett.failures.lines import Line, parse_line, without_colours
from torchett.failures.rules import Pattern, Rule
from torchett.failures.tracebacks import read_tracebacks
from torchett.failures.vocabulary import Role, Strength

_STRENGTHS: Final = tuple(Strength)
_ROLES: Final = tuple(Role)
_REPEATED: Final = re.compile(
    r"\b(?:will retry|retrying|retry (?:attempt|in|after|\d)|trying again)\b"
    r"|\battempt \d+ ?(?:/|of) ?\d+\b|\((?:try|retry)=\d|ignored|skipping",
    re.IGNORECASE,
)
_CODE: Final = re.compile(r"(?:^|[:\]>] ?)\s{3,}(?:raise \w|assert \w|return \w|if \w|f?[\"'])")
_WARNING: Final = re.compile(r"^\S*:\d+: \w*Warning: |^\w*Warning: ")
_NUMBERS: Final = re.compile(r"0x[0-9a-fA-F]+|\d+")
_LONGEST: Final = 4000
_Numbered = tuple[int, Pattern]  # the rule's place in the table, and one of its patterns


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A line that a rule fits."""

    rule: Rule
    line: Line
    weak: bool = False
    file: str = ""

    @property
    def order(self) -> tuple[bool, bool, int, int]:
        """Less is nearer to the cause."""
        role, strength = _ROLES.index(self.rule.role), _STRENGTHS.index(self.rule.strength)
        return self.rule.role is Role.TEARDOWN, self.weak, role, strength


def find_evidence(
    text: str,
    rules: Iterable[Rule],
    *,
    usual: Collection[str] = (),
    file: str = "",
    rank: int | None = None,
    first_line: int = 1,
) -> list[Evidence]:
    """The evidence in a text, in its order; `rank` is that of lines which do not say it."""
    rules = tuple(rules)
    numbers, lines = _numbered_lines(without_colours(text))
    shapes = LineShapes(lines)
    summary = read_summary(lines, shapes.with_text("root cause (first observed failure)"))
    tracebacks = read_tracebacks(lines, shapes.with_text('file "'))
    aside = tracebacks.code | summary.aside
    found: list[Evidence] = []
    for index, patterns in sorted(_candidates(lines, shapes, rules).items()):
        if index in aside or _CODE.search(lines[index]):
            continue
        line = parse_line(lines[index], numbers[index] + first_line)
        if line.rank is None:
            line = replace(line, rank=summary.rank_of.get(index, rank))
        if (
            line.level == "DEBUG"
            or "NCCL INFO" in line.message
            or (usual and normalised(line.message) in usual)
        ):
            continue
        rule = _strongest(line, patterns, rules, tracebacks.raised_in.get(index, ""))
        if rule is not None:
            found.append(Evidence(rule=rule, line=line, weak=_is_weak(line, rule), file=file))
    return found


def normalised(message: str) -> str:
    """A message with every number replaced, to compare attempts by."""
    return _NUMBERS.sub("#", message).strip()


def usual_lines(text: str) -> frozenset[str]:
    """The messages of an attempt that went well: no evidence in a later one."""
    return frozenset(normalised(parse_line(line, 0).message) for line in _numbered_lines(text)[1])


def _numbered_lines(text: str) -> tuple[list[int], list[str]]:
    """Lines, and how many line feeds are before each.

    A progress bar's carriage return ends a line too, but editors do not count it.
    """
    parts = [
        (number, part[:_LONGEST])
        for number, line in enumerate(text.split("\n"))
        for part in line.rstrip("\r").split("\r")
    ]
    return [number for number, _ in parts], [part for _, part in parts]


def _candidates(
    lines: list[str], shapes: LineShapes, rules: tuple[Rule, ...]
) -> dict[int, list[_Numbered]]:
    """Index of a line → the patterns that may fit it."""
    found: dict[int, list[_Numbered]] = {}
    for required, patterns in _patterns_by_text(rules).items():
        for index in shapes.with_text(required):
            text = lines[index].rstrip()
            fitting = [one for one in patterns if one[1].loose.search(text)]
            if fitting:
                found.setdefault(index, []).extend(fitting)
    return found


@lru_cache(maxsize=4)
def _patterns_by_text(rules: tuple[Rule, ...]) -> dict[str, list[_Numbered]]:
    """A required text → the patterns that require it; "" for those without."""
    wanted: dict[str, list[_Numbered]] = {}
    for number, rule in enumerate(rules):
        for pattern in rule.patterns:
            for required in pattern.texts or ("",):
                wanted.setdefault(required, []).append((number, pattern))
    return wanted


def _strongest(
    line: Line, patterns: list[_Numbered], rules: tuple[Rule, ...], raised_in: str
) -> Rule | None:
    """The strongest rule that fits a line, whose exception was raised there.

    Among equals one that says where it was raised, then one that begins a failure, then the earlier
    in the table.
    """
    fitting = {
        number
        for number, pattern in patterns
        if (pattern.regex.search(line.message) or pattern.regex.search(line.text))
        and rules[number].fits_place(raised_in)
    }
    return min(
        (rules[number] for number in sorted(fitting)),
        key=lambda rule: (
            _STRENGTHS.index(rule.strength),
            not rule.raised_in,
            _ROLES.index(rule.role),
        ),
        default=None,
    )


def _is_weak(line: Line, rule: Rule) -> bool:
    """Whether a program says this in passing. What decides or names one cause is not weak."""
    if rule.strength is Strength.DECISIVE:
        return False
    if _WARNING.match(line.message) or _REPEATED.search(line.message):
        return True
    if line.level == "W":  # torch warns of each try to connect
        return rule.role is Role.CASCADE
    return line.level == "INFO" and rule.strength is not Strength.SPECIFIC
