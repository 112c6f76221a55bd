"""What was decided after each failure, kept in the run folder: a job that is run again remembers.

    restarts.jsonl    {"attempt":0,"restart":1,"node":0,"category":"storage_io",
                       "outlook":"back-off","why":"…","durable_step":400, …}

Every node appends its own lines. Where nodes share no folder, each receives the others' and appends
them to its own. A launch by a person begins anew: only lines of the same lineage count, which is
the scheduler's job, or else the launcher.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from torchett.failures.vocabulary import UNKNOWN, domain_of_category
from torchett.model.restarts import Outlook

NAME = "restarts.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One decision, and the failure that it is about."""

    attempt: int
    restart: int
    outlook: Outlook
    why: str
    node: int = 0
    by: str = "launcher"  # or agent
    lineage: str = ""
    t_s: float = 0.0
    host: str = ""
    category: str = UNKNOWN
    root: bool = True  # False: it follows from a failure elsewhere
    rank: int | None = None
    text: str = ""  # the line that shows the failure
    file: str = ""
    place: str = ""  # the same for the same error at the same place
    row: str = ""  # of the table
    charged: bool = False  # a restart that counts
    limit_reached: bool = False  # stopped only because no restarts are left
    pause_s: float = 0.0
    durable_step: int = -1  # the last durable step then

    @property
    def domain(self) -> str:
        return domain_of_category(self.category)

    @property
    def life(self) -> tuple[int, int]:
        return self.attempt, self.restart

    @property
    def key(self) -> tuple[int, int, int, str, str]:
        return self.attempt, self.restart, self.node, self.by, self.lineage

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "outlook": self.outlook.value}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        known = {field.name for field in fields(cls)}
        given = {key: value for key, value in content.items() if key in known}
        return cls(**{**given, "outlook": Outlook(given["outlook"])})


def read_history(run: Path) -> list[Fact]:
    """All decisions of a run, in the order in which they were written; torn lines left out."""
    try:
        lines = (run / NAME).read_bytes().splitlines()
    except OSError:
        return []
    found: dict[tuple[int, int, int, str, str], Fact] = {}
    for line in lines:
        try:
            fact = Fact.from_json(json.loads(line))
        except (ValueError, KeyError, TypeError):
            continue
        found.setdefault(fact.key, fact)
    return list(found.values())


def append_facts(run: Path, facts: Iterable[Fact]) -> None:
    """Add lines, each in one write; a disk that is full loses them, never the job."""
    data = "".join(json.dumps(fact.to_json()) + "\n" for fact in facts)
    try:
        fd = os.open(run / NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError:
        return
    try:
        os.write(fd, data.encode())
    except OSError:
        pass
    finally:
        os.close(fd)


def lineage_of(env: Mapping[str, str], born_ns: int) -> str:
    """What tells a job that a scheduler runs again from one that a person starts again."""
    if env.get("SLURM_JOB_ID"):
        return f"slurm:{env['SLURM_JOB_ID']}"
    if env.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    return env.get("ETT_LINEAGE") or f"launch:{os.getpid()}:{born_ns}"


def without_progress(history: Iterable[Fact], durable_step: int) -> list[Fact]:
    """The decisions since the last durable progress: budgets are counted from there."""
    return [fact for fact in history if fact.durable_step >= durable_step]


def roots(history: Iterable[Fact]) -> list[Fact]:
    """For each life the decision about its root: what follows from it elsewhere is the same loss.

    It is charged if any node made a restart of it that counts.
    """
    lives: dict[tuple[int, int], list[Fact]] = {}
    for fact in history:
        lives.setdefault(fact.life, []).append(fact)
    return [min(facts, key=lambda fact: (not fact.root, fact.t_s)) for facts in lives.values()]


def charged_lives(history: Iterable[Fact]) -> set[tuple[int, int]]:
    """The lives after which a restart was made that counts."""
    return {fact.life for fact in history if fact.charged}
