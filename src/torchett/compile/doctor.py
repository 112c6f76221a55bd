"""The recompile doctor: compiles in, what went wrong and what to do about it out. Pure.

compiles ──► recompiles, each with its kind and source ──► causes, by seconds lost
                               └──► dynamic sources that cure what they can
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchett.compile.facts import Compile
from torchett.compile.reasons import CAUSES, Kind, Reason, explained, is_limit
from torchett.compile.sources import Dims, merged

_LEARNED: frozenset[Kind] = frozenset({"size", "number", "duck"})
_TRIED: frozenset[Kind] = frozenset({"zero_one", "range"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompile:
    """One function compiled once more, with its backward."""

    attempt: int
    rank: int
    id: str
    place: str
    reason: Reason
    ns: int

    @property
    def cured(self) -> bool:
        return CAUSES[self.reason.kind].cured

    def to_json(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "rank": self.rank,
            "id": self.id,
            "place": self.place,
            "kind": self.reason.kind,
            "cured_by_sources": self.cured,
            "source": self.reason.source,
            "dim": self.reason.dim,
            "reason": self.reason.text,
            "by": self.reason.by,
            "seconds": self.ns / 1e9,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the doctor found."""

    graphs: int  # compiled forwards
    ns: int  # all compiling, background included
    recompiles: tuple[Recompile, ...]
    failed: int  # compiles that ended in an error
    sources: dict[str, Dims]  # to be made dynamic

    @property
    def lost_ns(self) -> int:
        return sum(one.ns for one in self.recompiles)

    @property
    def left(self) -> int:
        """Graphs that would be left with these sources dynamic."""
        return self.graphs - sum(one.cured for one in self.recompiles)

    @property
    def unbacked(self) -> dict[str, Dims]:
        """What to try as unbacked, if sizes of 0 or 1 or ranges cost graphs: all tensors.

        Torch then knows nothing about these sizes and cannot choose by them. Where the code
        must choose it gives up, so this is to be tried, not trusted.
        """
        if not any(one.reason.kind in _TRIED for one in self.recompiles):
            return {}
        return {name: dims for name, dims in self.sources.items() if dims is not None}

    def by_kind(self) -> list[tuple[Kind, list[Recompile]]]:
        """Recompiles by kind, the costliest first."""
        kinds = defaultdict[Kind, list[Recompile]](list)
        for one in self.recompiles:
            kinds[one.reason.kind].append(one)
        return sorted(kinds.items(), key=lambda item: -sum(one.ns for one in item[1]))

    def to_json(self) -> dict[str, Any]:
        """As one JSON object, `dynamic_sources` left to whoever knows the torch it is for."""
        return {
            "graphs": self.graphs,
            "compile_s": self.ns / 1e9,
            "recompiles": len(self.recompiles),
            "failed": self.failed,
            "lost_s": self.lost_ns / 1e9,
            "graphs_with_sources": self.left,
            "causes": [
                {
                    "kind": kind,
                    "is": CAUSES[kind].title,
                    "cured_by_sources": CAUSES[kind].cured,
                    "do": CAUSES[kind].advice,
                    "recompiles": len(its),
                    "seconds": sum(one.ns for one in its) / 1e9,
                    "sources": sorted({one.reason.source for one in its if one.reason.source}),
                }
                for kind, its in self.by_kind()
            ],
            "sources": self.sources,
            "unbacked": self.unbacked,
            "each": [one.to_json() for one in self.recompiles],
        }


def diagnose(compiles: Sequence[tuple[int, int, Compile]]) -> Diagnosis:
    """What the compiles of a job (attempt, rank, compile) tell."""
    forwards: list[tuple[int, int, Compile, int]] = []
    latest: dict[tuple[int, int, str], int] = {}
    for attempt, rank, one in sorted(compiles, key=lambda c: (c[0], c[1], c[2].t0_ns)):
        where = latest.get((attempt, rank, one.id))
        if one.part == "forward" or where is None:
            latest[attempt, rank, one.id] = len(forwards)
            forwards.append((attempt, rank, one, one.ns))
        else:  # its backward, or what its first run had left to do
            _, _, forward, ns = forwards[where]
            forwards[where] = (attempt, rank, forward, ns + one.ns)
    recompiles = tuple(
        Recompile(
            attempt=attempt,
            rank=rank,
            id=one.id,
            place=one.place,
            reason=explained(one.reasons, one.failed),
            ns=ns,
        )
        for attempt, rank, one, ns in forwards
        if one.reasons or is_limit(one.failed)
    )
    graphs = sum(one.part == "forward" and not is_limit(one.failed) for _, _, one, _ in forwards)
    return Diagnosis(
        graphs=graphs,
        ns=sum(one.ns for _, _, one in compiles),
        recompiles=recompiles,
        failed=sum(one.failed is not None for _, _, one in compiles),
        sources=_sources([one for _, _, one, _ in forwards], recompiles),
    )


def _sources(forwards: Sequence[Compile], recompiles: Sequence[Recompile]) -> dict[str, Dims]:
    """What to make dynamic: what torch saw differ in functions that were compiled again.

    A name is left out if all that is known against it is something dynamic sources do not cure:
    a float, a tensor of another rank. Where torch told no sizes, the reasons themselves do.
    """
    against = defaultdict[str, set[Kind]](set)
    told: list[dict[str, Dims]] = []
    for again in recompiles:
        reason = again.reason
        if reason.source is None:
            continue
        against[reason.source].add(reason.kind)
        if reason.kind == "number":
            told.append({reason.source: None})
        elif reason.kind in _LEARNED and reason.dim is not None:
            told.append({reason.source: [reason.dim]})
    seen = merged([*(dict(one.sources) for one in forwards if one.reasons), *told])
    return {
        name: dims
        for name, dims in seen.items()
        if not against[name] or against[name] - {"float", "rank", "constant", "attribute", "object"}
    }
