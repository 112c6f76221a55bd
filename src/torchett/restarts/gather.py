"""The evidence of one life: what its ranks raised and how they exited, their logs, the kernel.

attempt-N/crash-*.json          what a rank raised, and where
attempts-*.jsonl                how ranks exited, as agents saw it, on every node
the agent's folder of logs      stderr of each rank, error files of torch
stderr, where it is a file      what was written since the life began (Slurm's output, nohup)
the kernel's counter            how many processes it killed for memory since then
"""

import json
import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from torchett.failures.classifier import exit_text
from torchett.failures.elastic import as_json, attempt_and_rank, text_of_error_file
from torchett.failures.evidence import Evidence, find_evidence, normalised
from torchett.failures.flight_recorder import absent_ranks, stuck_collectives
from torchett.failures.rules import Rule
from torchett.failures.verdict import judge
from torchett.failures.vocabulary import Role
from torchett.model.restarts import LifeEnd
from torchett.restarts.sources import dumps_of
from torchett.runs.launchers import Clocks, read_launches
from torchett.runs.printed import read_part

_MOST_BYTES: Final = 1 << 20  # of a log's end
_KILLED_FOR_MEMORY: Final = "oom-kill: the kernel has killed {} of this job's processes"
# Our own lines about earlier failures, and the agent's about exits, which are known.
_TOLD: Final = re.compile(r"^(?:(?:ett|torchett): |.*\bexitcode\s*:).*$", re.MULTILINE)
_WAITED: Final = ("nccl_timeout", "nccl_remote_peer", "unknown")
_LOGS: Final = ("stderr.log", "stdout.log", "error.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one life's evidence says: a verdict's parts, and the place of its error."""

    category: str
    outlook: Any
    root: bool
    rank: int | None
    text: str
    file: str
    place: str


def gather(
    run: Path,
    end: LifeEnd,
    rules: tuple[Rule, ...],
    *,
    printed: list[tuple[str, str, int]],
    killed_for_memory: int | None,
    since_s: float = 0.0,
) -> Found:
    """The verdict on a life that began after `since_s` (wall time).

    `killed_for_memory` is the kernel's count since, None if unknown.
    """
    crashes = list(_crashes(run, end))
    evidence: list[Evidence] = []
    for crash in crashes:
        shown = str(crash["error"])
        evidence += _at(
            find_evidence(shown, rules, file=crash["file"], rank=crash["rank"]), crash["t_s"]
        )
    exits = _exits(run, end)
    for rank, word in sorted(exits.items()):
        evidence += find_evidence(
            _exit_line(word, killed_for_memory), rules, file="exit status", rank=rank
        )
    if killed_for_memory and "SIGKILL" in exits.values():
        rank = min(rank for rank, word in exits.items() if word == "SIGKILL")
        line = _KILLED_FOR_MEMORY.format(killed_for_memory)
        evidence += find_evidence(line, rules, file="cgroup", rank=rank)
    for path in _logs(end):
        size = path.stat().st_size
        text = read_part(path, max(size - _MOST_BYTES, 0), size).decode(errors="replace")
        error = text_of_error_file(as_json(text)) if path.suffix == ".json" else text
        place = attempt_and_rank(path)
        evidence += find_evidence(
            error or "", rules, file=str(path), rank=None if place is None else place[1]
        )
    for name, text, first in printed:
        evidence += find_evidence(_news(text), rules, file=name, first_line=first + 1)
    stuck = stuck_collectives(dumps_of(run, end.attempt, since_s))
    evidence += find_evidence("\n".join(map(str, stuck)), rules, file="flight recorder")
    return _found(evidence, exits, crashes, sorted(absent_ranks(stuck)))


def _found(
    evidence: list[Evidence],
    exits: Mapping[int, str],
    crashes: list[dict[str, Any]],
    absent: list[int],
) -> Found:
    verdict = judge(evidence, absent)
    shown = verdict.evidence
    rank = None if shown is None else shown.line.rank
    text = shown.line.text.strip() if shown is not None else ""
    word = _first_exit(exits)
    unexplained = shown is None or shown.rule.role is Role.TEARDOWN
    if unexplained and word is not None:
        rank, text = word
    if absent and verdict.category in _WAITED:
        rank = absent[0]  # the others only say that they wait for it
    place = next((str(one["at"]) for one in crashes if one["rank"] == rank and one["at"]), "")
    return Found(
        category=verdict.category,
        outlook=verdict.outlook,
        root=unexplained
        or bool(absent)
        or (shown is not None and shown.rule.role is Role.INITIATING),
        rank=rank,
        text=text,
        file="" if unexplained or shown is None else f"{shown.file}:{shown.line.number}",
        place=f"{normalised(text)} at {place or f'rank {rank}'}",
    )


def _first_exit(exits: Mapping[int, str]) -> tuple[int, str] | None:
    """The rank whose exit says most: a signal before a status, a lower rank before a higher."""
    ordered = sorted(exits, key=lambda rank: (exits[rank].startswith("exit_"), rank))
    return (ordered[0], exits[ordered[0]]) if ordered else None


def _news(text: str) -> str:
    """What was printed, with lines left empty that say nothing new."""
    return _TOLD.sub("", text)


def _at(evidence: list[Evidence], t_s: float) -> list[Evidence]:
    return [replace(one, line=replace(one.line, time_s=t_s)) for one in evidence]


def _exit_line(word: str, killed_for_memory: int | None) -> str:
    """How a rank exited, in words that rules know.

    A SIGKILL that the kernel did not send for memory has no cause that we know.
    """
    if word == "SIGKILL" and killed_for_memory == 0:
        return ""
    if word.startswith("exit_"):
        return exit_text(int(word[5:]))
    number = getattr(signal, word, None)
    return exit_text(-number) if number is not None else word


def _exits(run: Path, end: LifeEnd) -> dict[int, str]:
    """How the ranks of all nodes exited, as far as their agents have written it down."""
    found = dict(end.exits)
    for failure in read_launches(run, Clocks()).failures:
        life = failure.attempt, failure.restart
        if life == (end.attempt, end.restart) and not failure.end.raised:
            found.setdefault(failure.end.rank, failure.end.cause)
    # The agent stops the others by SIGTERM before it says who failed.
    return {rank: word for rank, word in found.items() if word != "SIGTERM"} or found


def _crashes(run: Path, end: LifeEnd) -> Iterator[dict[str, Any]]:
    """What ranks of this life raised, the first first."""
    known = []
    for path in run.glob("attempt-*/crash-*.json"):
        try:
            fact = json.loads(path.read_bytes())
            if (fact["attempt"], fact["restart"]) == (end.attempt, end.restart):
                clock = fact["anchor"]
                at = (fact["t_ns"] + clock["wall_ns"] - clock["mono_ns"]) / 1e9
                known.append(
                    {
                        "file": str(path),
                        "rank": int(fact["rank"]),
                        "error": str(fact["error"]),
                        "at": fact.get("at"),
                        "t_s": at,
                    }
                )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    yield from sorted(known, key=lambda fact: float(fact["t_s"]))


def _logs(end: LifeEnd) -> list[Path]:
    """The ranks' logs and error files of this life, of the newest run in the agent's folder."""
    if not end.logs:
        return []
    folders = [path for path in Path(end.logs).glob(f"*/attempt_{end.restart}") if path.is_dir()]
    newest = max(folders, key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        return []
    return sorted(path for name in _LOGS for path in newest.glob(f"*/{name}"))
