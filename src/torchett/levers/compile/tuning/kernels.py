"""Which kernels cost most to tune and compile, from the notes of processes. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class KernelCost:
    """One kernel of a job, over all its ranks."""

    name: str
    origin: str = ""
    tuning_s: float = 0.0
    compiling_s: float = 0.0
    benchmarks: int = 0
    pinned: int = 0  # how often a pin replaced tuning
    winners: dict[str, str] = field(default_factory=dict)  # key → config

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def kernel_costs(facts: Iterable[tuple[int, int, Any]]) -> list[KernelCost]:
    """Every kernel that was tuned, pinned or compiled, the most expensive first."""
    found: dict[str, KernelCost] = {}
    for _, _, fact in facts:
        if not isinstance(fact, dict) or not isinstance(fact.get("kernel"), str):
            continue
        one = found.setdefault(fact["kernel"], KernelCost(fact["kernel"]))
        try:
            one.origin = str(fact.get("origin", "")) or one.origin
            one.tuning_s += float(fact.get("tuning_s", 0))
            one.compiling_s += float(fact.get("compiling_s", 0))
            one.benchmarks += int(fact.get("benchmarks", 0))
            one.pinned += bool(fact.get("pinned"))
        except (TypeError, ValueError):
            continue
        if "winner" in fact:
            one.winners[str(fact.get("key", ""))] = str(fact["winner"])
    return sorted(found.values(), key=lambda one: (-(one.tuning_s + one.compiling_s), one.name))
