"""The plan for two tiers: snapshots in memory, and saves to storage for what memory loses.

failures   ├── share: ranks are killed, memory stays ──┤── the rest: nodes are lost ──┤
memory     T* for the failures that it survives: M / share apart
storage    T* for the rest: M / (1 − share) apart
"""

from dataclasses import dataclass, replace
from typing import Any

from torchett.levers.checkpoint.interval.interval import (
    Costs,
    Tier,
    Waste,
    tier_intervals,
    waste,
)

SURVIVED = 0.75  # of the failures, by memory: where nothing else is known


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoTiers:
    """Both intervals, and what all of it wastes, beside storage alone."""

    memory_interval_s: float
    storage_interval_s: float
    memory_costs: Costs
    storage_costs: Costs
    wasted: float
    wasted_without: float

    def to_json(self) -> dict[str, Any]:
        return {
            "memory_interval_s": self.memory_interval_s,
            "storage_interval_s": self.storage_interval_s,
            "memory_mtbf_s": self.memory_costs.mtbf_s,
            "storage_mtbf_s": self.storage_costs.mtbf_s,
            "waste_percent": 100 * self.wasted,
            "waste_without_memory_percent": 100 * self.wasted_without,
        }

    def said(self) -> str:
        return (
            f"Two tiers: a snapshot in memory every {self.memory_interval_s:.3g} s, a save to "
            f"storage every {self.storage_interval_s:.4g} s of training: "
            f"{100 * self.wasted:.3g}% of the time is wasted, "
            f"{100 * self.wasted_without:.3g}% with storage alone\n"
            "Storage, for the failures that memory does not survive:"
        )


def two_tiers(costs: Costs, memory_blocking_s: float, share: float) -> TwoTiers:
    """The best intervals where memory survives this share of the failures."""
    lost = replace(costs, mtbf_s=costs.mtbf_s / (1 - share))
    survived = Costs(
        blocking_s=memory_blocking_s, mtbf_s=costs.mtbf_s / share, recover_s=costs.recover_s
    )
    memory_s, storage_s = tier_intervals(
        [
            Tier(blocking_s=memory_blocking_s, failures_per_s=1 / survived.mtbf_s),
            Tier(blocking_s=costs.blocking_s, failures_per_s=1 / lost.mtbf_s),
        ]
    )
    alone_s = tier_intervals([Tier(blocking_s=costs.blocking_s, failures_per_s=1 / costs.mtbf_s)])
    return TwoTiers(
        memory_interval_s=memory_s,
        storage_interval_s=storage_s,
        memory_costs=survived,
        storage_costs=lost,
        wasted=_total(waste(memory_s, survived), waste(storage_s, lost)),
        wasted_without=waste(alone_s[0], costs).total,
    )


def _total(memory: Waste, storage: Waste) -> float:
    """Both, one on top of the other."""
    return 1 - (1 - memory.total) * (1 - storage.total)
