"""The record of one compile: when, of what, why, and the time by cause.

A process with an open record stores it as a note there. A process that `ett run` started, but that
has no record, appends it to a file in the run folder instead:

    <run>/compiles-RANK-PID.jsonl
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from torchett.record import api

KIND: Final = "compile"  # the kind of these notes
KERNEL: Final = "kernel"  # the kind of notes about single kernels

Cause = Literal["dynamo", "backend", "triton", "autotune", "cache_load"]
CAUSES: Final[tuple[Cause, ...]] = ("dynamo", "backend", "triton", "autotune", "cache_load")
CAUSE_TITLES: Final[dict[Cause, str]] = {
    "dynamo": "tracing (dynamo)",
    "backend": "backend",
    "triton": "kernels (triton, g++)",
    "autotune": "autotuning",
    "cache_load": "loading caches",
}
Part = Literal["forward", "backward", "runtime"]
Sources = Mapping[str, list[int] | None]  # name → dimensions that changed; None for a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """One compile of one graph, forward or backward, or compile work at its first run."""

    id: str  # torch's id, such as "0/1": the second compile of frame 0
    part: Part = "forward"
    t0_ns: int = 0
    t1_ns: int = 0
    by_ns: Mapping[str, int] = field(default_factory=dict)  # cause → its share of the time
    again: bool = False  # after the rank's first step: recompile instead of pt2_compile
    background: bool = False
    name: str | None = None  # of the function
    file: str | None = None
    line: int | None = None
    code: str | None = None  # hash of the function's source
    reasons: tuple[str, ...] = ()  # the failed guard of each existing graph
    failed: str | None = None
    nodes: int | None = None
    caches: Mapping[str, int] = field(default_factory=dict)  # "fx_graph_cache_hit" → count
    sources: Sources = field(default_factory=dict)

    @property
    def ns(self) -> int:
        return self.t1_ns - self.t0_ns

    @property
    def place(self) -> str:
        """NAME (FILE:LINE), or the known part of it."""
        if self.file is None:
            return self.name or f"frame {self.id.partition('/')[0]}"
        return f"{self.name} ({self.file}:{self.line})"

    def to_json(self) -> dict[str, Any]:
        """A JSON object without empty fields."""
        shown = {name: getattr(self, name) for name in self.__slots__}
        shown["by_ns"] = {cause: ns for cause, ns in self.by_ns.items() if ns}
        shown["reasons"] = list(self.reasons)
        return {name: value for name, value in shown.items() if value or name == "id"}


def from_json(fact: Any) -> Compile | None:
    """The compile in a fact; None if the fact is not one."""
    if not isinstance(fact, dict) or not isinstance(fact.get("id"), str):
        return None
    known = {name: fact[name] for name in Compile.__slots__ if name in fact}
    try:
        known["reasons"] = tuple(str(reason) for reason in fact.get("reasons", ()))
        made = Compile(**known)
        return made if made.ns >= 0 else None
    except (TypeError, ValueError):
        return None


def keep(kind: str, fact: dict[str, Any]) -> None:
    """Store a fact in the record; without a record, in the run folder of `ett run`."""
    run = os.environ.get("ETT_RUN")
    if api.recorder() is not None or run is None:
        api.note(kind, fact)
        return
    rank = os.environ.get("RANK", "0")
    path = Path(run) / f"compiles-{rank if rank.isdigit() else 0}-{os.getpid()}.jsonl"
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"note": kind, "fact": fact}) + "\n")


def stray_facts(run: Path, kind: str) -> Iterator[tuple[int, int, Any]]:
    """(attempt, rank, fact) from processes without a record; the attempt is unknown: 0."""
    for path in sorted(run.glob("compiles-*-*.jsonl")):
        rank = path.name.split("-")[1]
        if not rank.isdigit():
            continue
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                stray = json.loads(line)
                if stray["note"] == kind:
                    yield 0, int(rank), stray["fact"]
            except (ValueError, TypeError, KeyError):
                continue  # the last line of a killed process
