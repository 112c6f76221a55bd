"""The recompile doctor: from compiles to the causes of recompiles and their remedies. Pure.

compiles ──► recompiles, each with its kind and source ──► causes, by seconds lost
                               └──► dynamic sources that cure what they can
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchett.levers.compile.doctor.reasons import CAUSES, Kind, Reason, explained, is_limit
from torchett.levers.compile.doctor.sources import Dims, merged
from torchett.levers.compile.observe.facts import Compile

_LEARNED: frozenset[Kind] = frozenset({"size", "number", "duck"})
_TRIED: frozenset[Kind] = frozenset({"zero_one", "range"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompile:
    """One more compile of a function, with its backward."""

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
    """The result of the doctor."""

    graphs: int  # compiled forwards
    ns: int  # time of all compiles, with those in the background
    recompiles: tuple[Recompile, ...]
    failed: int  # compiles that ended with an error
    sources: dict[str, Dims]  # inputs to make dynamic

    @property
    def lost_ns(self) -> int:
        return sum(one.ns for one in self.recompiles)

    @property
    def left(self) -> int:
        """The number of graphs if these sources are dynamic."""
        return self.graphs - sum(one.cured for one in self.recompiles)

    @property
    def unbacked(self) -> dict[str, Dims]:
        """Tensors to try as unbacked; empty unless sizes of 0 or 1, or ranges, cost graphs.

        Torch then assumes nothing about these sizes. It fails where the code branches on them, so
        this must be tried first.
        """
        if not any(one.reason.kind in _TRIED for one in self.recompiles):
            return {}
        return {name: dims for name, dims in self.sources.items() if dims is not None}

    def by_kind(self) -> list[tuple[Kind, list[Recompile]]]:
        """Recompiles by kind, the most expensive kind first."""
        kinds = defaultdict[Kind, list[Recompile]](list)
        for one in self.recompiles:
            kinds[one.reason.kind].append(one)
        return sorted(kinds.items(), key=lambda item: -sum(one.ns for one in item[1]))

    def to_json(self) -> dict[str, Any]:
        """One JSON object; the caller adds `dynamic_sources`, which depend on torch's version."""
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
    """The diagnosis from the compiles of a job: (attempt, rank, compile)."""
    forwards: list[tuple[int, int, Compile, int]] = []
    latest: dict[tuple[int, int, str], int] = {}
    for attempt, rank, one in sorted(compiles, key=lambda c: (c[0], c[1], c[2].t0_ns)):
        where = latest.get((attempt, rank, one.id))
        if one.part == "forward" or where is None:
            latest[attempt, rank, one.id] = len(forwards)
            forwards.append((attempt, rank, one, one.ns))
        else:  # its backward, or work at its first run
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
    """Inputs to make dynamic: those that differed in functions that were compiled again.

    An input is left out if all its recompiles have causes that dynamic sources do not prevent (a
    float, a tensor of another rank). Dimensions also come from the reasons, if torch has none.
    """
    against = defaultdict[str, set[Kind]](set)
    from_reasons: list[dict[str, Dims]] = []
    for again in recompiles:
        reason = again.reason
        if reason.source is None:
            continue
        against[reason.source].add(reason.kind)
        if reason.kind == "number":
            from_reasons.append({reason.source: None})
        elif reason.kind in _LEARNED and reason.dim is not None:
            from_reasons.append({reason.source: [reason.dim]})
    seen = merged([*(dict(one.sources) for one in forwards if one.reasons), *from_reasons])
    return {
        name: dims
        for name, dims in seen.items()
        if not against[name] or against[name] - {"float", "rank", "constant", "attribute", "object"}
    }
