"""What torch's elastic agent leaves: its summary of failed ranks, error files, folders of logs.

    Failures:                               other ranks, most of them ended by the agent: aside
    [1]:
      rank      : 1 (local_rank: 1)
      exitcode  : -15 (pid: 4412)
    Root Cause (first observed failure):    the rank that counts
    [0]:
      rank      : 0 (local_rank: 0)
      exitcode  : -9 (pid: 4411)

With `--log-dir`, ranks write to `RUN_ID/attempt_N/RANK/{stdout.log,stderr.log,error.json}`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_RANK: Final = re.compile(r"\brank\s*:\s*(\d+) \(local_rank")
_RULER: Final = re.compile(r"={8,}\s*$")
_FOLDER: Final = re.compile(r"attempt_(\d+)/(\d+)/[^/]+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Indices of lines in the agent's summary: those without meaning, and whose the others are."""

    aside: frozenset[int] = frozenset()
    rank_of: dict[int, int] = field(default_factory=dict)


def read_summary(lines: Sequence[str], roots: Iterable[int]) -> Summary:
    """The summaries in a log, whose lines `Root Cause (…)` have these indices.

    Ranks that are not the root cause are set aside.
    """
    aside: set[int] = set()
    rank_of: dict[int, int] = {}
    for root in roots:
        begin = root
        while begin > 0 and root - begin < 2000 and not lines[begin - 1].endswith("Failures:"):
            begin -= 1
        if begin > 0 and lines[begin - 1].endswith("Failures:"):
            aside.update(range(begin - 1, root))
        rank: int | None = None
        for index in range(root, min(root + 200, len(lines))):
            if _RULER.search(lines[index]):
                break
            found = _RANK.search(lines[index])
            rank = int(found[1]) if found else rank
            if rank is not None:
                rank_of[index] = rank
    return Summary(aside=frozenset(aside), rank_of=rank_of)


def text_of_error_file(content: Any) -> str | None:
    """The traceback and the message in an `error.json`; None if it is something else."""
    if not isinstance(content, dict) or "message" not in content:
        return None
    message = content["message"]
    if not isinstance(message, dict):
        return str(message)
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack", "") if isinstance(extra, dict) else ""
    said = str(message.get("message", ""))
    return str(stack) if said and said.splitlines()[0] in str(stack) else f"{stack}\n{said}"


def attempt_and_rank(path: Path) -> tuple[int, int] | None:
    """The attempt and rank that a file in the agent's folder of logs belongs to."""
    found = _FOLDER.search(path.as_posix())
    return (int(found[1]), int(found[2])) if found else None


def logs_of_last_attempt(folder: Path) -> list[Path]:
    """The logs and error files of the last attempt below a folder; empty if there are none."""
    placed: list[tuple[int, Path]] = []
    for name in ("stderr.log", "stdout.log", "error.json"):
        for path in folder.rglob(f"attempt_*/*/{name}"):
            place = attempt_and_rank(path)
            if place is not None:
                placed.append((place[0], path))
    last = max((attempt for attempt, _ in placed), default=0)
    return sorted(path for attempt, path in placed if attempt == last)


def as_json(text: str) -> Any:
    """What a text is as JSON; None if it is none."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
