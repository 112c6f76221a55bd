"""One verdict from much evidence: what began the failure, on which rank, and what to do next.

The line nearest to the cause is chosen: what begins a failure before what follows from it, what
follows before what ends the job; then the stronger rule; then the earlier time, if all lines that
are left have one; then the earlier line.

    rank 5  ValueError: …                              ◄── initiating: the verdict
    rank 0  ncclRemoteError … remote process exiting       cascade
    rank 1  Watchdog caught collective operation timeout   cascade
    agent   Sending process 812 closing signal SIGTERM     teardown
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from torchett.failures.evidence import Evidence
from torchett.failures.vocabulary import (
    OUTLOOKS,
    UNKNOWN,
    Outlook,
    Role,
    VerdictDomain,
)

_SHOWN: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a failure was."""

    category: str = UNKNOWN
    domain: VerdictDomain = UNKNOWN
    outlook: Outlook = OUTLOOKS[UNKNOWN]
    evidence: Evidence | None = None
    ranks: Mapping[int, Role] = field(default_factory=dict)
    absent: tuple[int, ...] = ()  # ranks that did not take part in a collective

    @property
    def initiating_ranks(self) -> list[int]:
        return sorted(rank for rank, role in self.ranks.items() if role is Role.INITIATING)

    def to_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "category": self.category,
            "domain": self.domain,
            "outlook": self.outlook.value,
            "evidence": None,
        }
        if self.evidence is not None:
            shown["evidence"] = {
                "file": self.evidence.file,
                "line": self.evidence.line.number,
                "text": self.evidence.line.text[:_SHOWN],
                "rule": self.evidence.rule.name,
                "role": self.evidence.rule.role.value,
            }
        if self.ranks:
            shown["ranks"] = {str(rank): role.value for rank, role in sorted(self.ranks.items())}
            shown["initiating_ranks"] = self.initiating_ranks
        if self.absent:
            shown["absent_ranks"] = list(self.absent)
        return shown


def judge(evidence: Iterable[Evidence], absent: Iterable[int] = ()) -> Verdict:
    """The verdict on all the evidence of one failure."""
    found = list(evidence)
    absent = tuple(sorted(absent))
    if not found:
        return Verdict(absent=absent)
    first = _nearest(found)
    named = _nearest_known(found, first)
    return Verdict(
        category=named.rule.category,
        domain=named.rule.domain,
        outlook=named.rule.outlook,
        evidence=named,
        ranks=_roles(found, named, absent),
        absent=absent,
    )


def _nearest_known(found: list[Evidence], first: Evidence) -> Evidence:
    """The nearest evidence with a category, else with a domain, else the nearest of all.

    What only ends the job is not taken for the cause where there is evidence before it. Nor is
    what follows from a failure, where something of a known domain began it.
    """
    began = first.rule.role is Role.INITIATING and first.rule.domain != UNKNOWN and not first.weak
    if first.rule.category != UNKNOWN or began:
        return first
    before = [one for one in found if one.rule.role is not Role.TEARDOWN or one is first]
    known = [one for one in before if one.rule.category != UNKNOWN]
    told = known or [
        one for one in found if one.rule.category == UNKNOWN and one.rule.domain != UNKNOWN
    ]
    return _nearest(told) if told else first


def _nearest(found: list[Evidence]) -> Evidence:
    least = min(one.order for one in found)
    best = [one for one in found if one.order == least]
    times = [one.line.time_s for one in best]
    if None not in times:
        return min(zip(times, range(len(best)), best, strict=True))[2]
    return best[0]


def _roles(found: list[Evidence], named: Evidence, absent: tuple[int, ...]) -> dict[int, Role]:
    """What each rank has to do with the failure.

    One failure has one beginning. Further ranks began it too only if they say the same.
    """
    by_rank: dict[int, list[Evidence]] = {}
    for one in found:
        if one.line.rank is not None:
            by_rank.setdefault(one.line.rank, []).append(one)
    roles: dict[int, Role] = {}
    for rank, its in by_rank.items():
        best = _nearest(its)
        role = best.rule.role
        if rank == named.line.rank:
            role = Role.INITIATING
        elif role is Role.INITIATING and best.rule.category != named.rule.category:
            role = Role.CASCADE
        roles[rank] = role
    return roles | dict.fromkeys(absent, Role.INITIATING)
