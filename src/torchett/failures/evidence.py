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
from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from torchett.failures.elastic import read_summary
from torchett.failures.lines import Line, parse_line
from torchett.failures.rules import Pattern, Rule
from torchett.failures.vocabulary import Role, Strength

_STRENGTHS: Final = tuple(Strength)
_ROLES: Final = tuple(Role)
_REPEATED: Final = re.compile(
    r"\b(?:will retry|retrying|retry (?:attempt|in|after|\d)|trying again)\b"
    r"|\battempt \d+ ?(?:/|of) ?\d+\b|\((?:try|retry)=\d|ignored|skipping",
    re.IGNORECASE,
)
_FRAME: Final = re.compile(r'^\s*File "[^"]*", line \d+')
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
    numbers, lines = _numbered_lines(text)
    summary = read_summary(lines)
    aside = _code_lines(lines) | summary.aside
    found: list[Evidence] = []
    for index, patterns in sorted(_candidates(lines, rules).items()):
        if index in aside or not _may_fit(lines[index], patterns) or _CODE.search(lines[index]):
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
        rule = _strongest(line, patterns, rules)
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


def _candidates(lines: list[str], rules: tuple[Rule, ...]) -> dict[int, list[_Numbered]]:
    """Index of a line → the patterns that may fit it, because it has a text they require."""
    lowered = [line.lower() for line in lines]
    whole = "\n".join(lowered)
    starts, start = [], 0
    for line in lowered:
        starts.append(start)
        start += len(line) + 1
    found: dict[int, list[_Numbered]] = {}
    for required, patterns in _patterns_by_text(rules).items():
        for index in _lines_with(required, whole, starts):
            found.setdefault(index, []).extend(patterns)
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


def _lines_with(required: str, whole: str, starts: list[int]) -> Iterable[int]:
    """Indices of the lines that contain the text; all lines for an empty one."""
    if not required:
        return range(len(starts))
    found, at = [], whole.find(required)
    while at >= 0:
        index = bisect_right(starts, at) - 1
        found.append(index)
        if index + 1 >= len(starts):
            break
        at = whole.find(required, starts[index + 1])
    return found


def _may_fit(text: str, patterns: list[_Numbered]) -> bool:
    """Whether a line is worth taking apart. A pattern with ^ may fit what follows a prefix."""
    return any(
        pattern.regex.pattern.startswith("^") or pattern.regex.search(text)
        for _, pattern in patterns
    )


def _strongest(line: Line, patterns: list[_Numbered], rules: tuple[Rule, ...]) -> Rule | None:
    """The strongest rule that fits a line.

    Among equals one that begins a failure, then the earlier in the table.
    """
    fitting = {
        number
        for number, pattern in patterns
        if pattern.regex.search(line.message) or pattern.regex.search(line.text)
    }
    return min(
        (rules[number] for number in sorted(fitting)),
        key=lambda rule: (_STRENGTHS.index(rule.strength), _ROLES.index(rule.role)),
        default=None,
    )


def _code_lines(lines: list[str]) -> set[int]:
    """Indices of the lines in which a traceback prints frames and their source."""
    found: set[int] = set()
    for index, line in enumerate(lines):
        if 'File "' not in line or ", line " not in line:
            continue
        frame = parse_line(line, 0).message
        if _FRAME.match(frame):
            found.add(index)
            indent = len(line) - len(line.lstrip())
            after = lines[index + 1 : index + 2]
            if after and not after[0].lstrip().startswith('File "'):
                shown = parse_line(after[0], 0).message
                deeper = len(after[0]) - len(after[0].lstrip()) > indent
                if deeper or not re.match(r"[\w.]+(?:Error|Exception)\b", shown):
                    found.add(index + 1)
    return found


def _is_weak(line: Line, rule: Rule) -> bool:
    """Whether a program says this in passing. What decides or names one cause is not weak."""
    if rule.strength is Strength.DECISIVE:
        return False
    if _WARNING.match(line.message) or _REPEATED.search(line.message):
        return True
    if line.level == "W":  # torch warns of each try to connect
        return rule.role is Role.CASCADE
    return line.level == "INFO" and rule.strength is not Strength.SPECIFIC
