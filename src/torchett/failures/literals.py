"""Texts of which every match of a regular expression contains one.

Logs have millions of lines and the table has hundreds of patterns. A search for a plain text costs
a fraction of a search for a pattern, so a pattern is tried only on lines that contain such a text.

    'Watchdog caught (?:collective )?operation'  →  ('watchdog caught ',)
    '(?:disk|volume)\\S* is full'                →  (' is full',)
    'ESTALE|Stale file handle'                   →  ('estale', 'stale file handle')
"""

from typing import Final

_SPECIAL: Final = set(".^$*+?{}[]\\|()")
_OPTIONAL: Final = ("*", "?", "{")
_LEAST: Final = 3


def required_texts(pattern: str) -> tuple[str, ...]:
    """The texts in lower case; empty where some match has none of at least three characters."""
    found: list[str] = []
    for branch in _branches(pattern):
        texts = _of_branch(branch)
        if not texts:
            return ()
        found += texts
    return tuple(dict.fromkeys(found))


def _of_branch(branch: str) -> tuple[str, ...]:
    """The best choice among a branch's plain runs and its groups: the one with longest texts."""
    choices: list[tuple[str, ...]] = []
    run, at = "", 0
    while at < len(branch):
        char, literal = branch[at], None
        after = at + 1
        if char == "\\":
            escaped = branch[after : after + 1]
            after += 1
            literal = escaped if escaped and not escaped.isalnum() else None
        elif char == "[":
            after = _class_end(branch, after)
        elif char == "(":
            after = _group_end(branch, after)
            if branch[after : after + 1] not in _OPTIONAL or after >= len(branch):
                choices.append(required_texts(_inside(branch[at + 1 : after - 1])))
        elif char == "{":
            after = branch.find("}", at) + 1 or at + 1
        elif char not in _SPECIAL:
            literal = char
        if literal is None or (branch[after : after + 1] in _OPTIONAL and after < len(branch)):
            choices.append((run,))
            run = ""
        else:
            run += literal
        at = after
    choices.append((run,))
    best = max(choices, key=lambda texts: min(map(len, texts), default=0))
    return tuple(text.lower() for text in best) if min(map(len, best), default=0) >= _LEAST else ()


def _branches(pattern: str) -> list[str]:
    """The sides of the alternation at the top level of a pattern."""
    found, start, at = [], 0, 0
    while at < len(pattern):
        if pattern[at] == "|":
            found.append(pattern[start:at])
            start = at = at + 1
        else:
            at = _next(pattern, at)
    return [*found, pattern[start:]]


def _next(pattern: str, at: int) -> int:
    """The place after the escape, class, group or character at `at`."""
    if pattern[at] == "\\":
        return at + 2
    if pattern[at] == "[":
        return _class_end(pattern, at + 1)
    return _group_end(pattern, at + 1) if pattern[at] == "(" else at + 1


def _group_end(pattern: str, at: int) -> int:
    while at < len(pattern) and pattern[at] != ")":
        at = _next(pattern, at)
    return at + 1


def _class_end(pattern: str, at: int) -> int:
    at += pattern[at : at + 1] == "^"
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _inside(group: str) -> str:
    """A group without `?:` or `?-i:`; a look-ahead requires nothing of what is matched."""
    for begin in ("?:", "?-i:"):
        if group.startswith(begin):
            return group[len(begin) :]
    return "" if group.startswith("?") else group
