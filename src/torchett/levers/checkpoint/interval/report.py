"""A plan: how often to save, what that wastes, and what other intervals would."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchett.levers.checkpoint.interval.interval import (
    DAY_S,
    Costs,
    Waste,
    optimum_s,
    simple_s,
    simple_waste,
    waste,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One interval, what it wastes exactly, and by the simple formula."""

    interval_s: float
    waste: Waste
    simple: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalPlan:
    """The best interval for these costs: `optimum_s`, or more where uploads take longer."""

    costs: Costs
    interval_s: float
    optimum_s: float
    interval_simple_s: float
    waste: Waste

    @property
    def least_interval_s(self) -> float:
        """With one upload at a time, saves cannot follow each other faster than this."""
        return least_s(self.costs)

    @property
    def held_up(self) -> bool:
        """Whether uploads do not let it save as often as would be best."""
        return self.interval_s > self.optimum_s

    def at(self, interval_s: float) -> Point:
        saving, lost = simple_waste(interval_s, self.costs)
        return Point(
            interval_s=interval_s, waste=waste(interval_s, self.costs), simple=saving + lost
        )

    def curve(self, until_s: float | None = None, points: int = 120) -> Sequence[Point]:
        """Points at even distances, up to four times the optimum."""
        until_s = until_s or 4 * self.interval_s
        return [self.at(until_s * i / points) for i in range(1, points + 1)]

    def to_json(self) -> dict[str, Any]:
        simple = self.at(self.interval_simple_s)
        return {
            "interval_s": self.interval_s,
            "optimum_s": self.optimum_s,
            "interval_simple_s": self.interval_simple_s,
            "least_interval_s": self.least_interval_s,
            **_percents(self.waste),
            "waste_simple_percent": 100 * simple.simple,
            "blocking_s": self.costs.blocking_s,
            "mtbf_s": self.costs.mtbf_s,
            "failures_per_day": DAY_S / self.costs.mtbf_s,
            "upload_s": self.costs.upload_s,
            "recover_s": self.costs.recover_s,
            "curve": [
                {
                    "interval_s": point.interval_s,
                    **_percents(point.waste),
                    "simple_percent": 100 * point.simple,
                }
                for point in self.curve(points=40)
            ],
        }


def plan(costs: Costs) -> IntervalPlan:
    """The plan for these costs; both blocking and the MTBF must be above 0."""
    best_s = optimum_s(costs.blocking_s, costs.mtbf_s)
    interval_s = max(best_s, least_s(costs))
    return IntervalPlan(
        costs=costs,
        interval_s=interval_s,
        optimum_s=best_s,
        interval_simple_s=simple_s(costs.blocking_s, costs.mtbf_s),
        waste=waste(interval_s, costs),
    )


def least_s(costs: Costs) -> float:
    """The shortest interval in which the upload before is through when the next one begins."""
    return max(0.0, costs.upload_s - costs.blocking_s)


def _percents(parts: Waste) -> dict[str, float]:
    return {
        "waste_percent": 100 * parts.total,
        "checkpointing_percent": 100 * parts.checkpointing,
        "lost_percent": 100 * parts.lost,
        "recovering_percent": 100 * parts.recovering,
    }
