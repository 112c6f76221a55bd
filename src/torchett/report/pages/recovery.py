"""What failures cost, account by account, in the order of time.

last step ─ detect ─ restart_gap ─ start accounts ─ progress again      and what was lost: unsaved
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torchett.ledger.ledger import Ledger
from torchett.ledger.metrics.losses import FailureCost
from torchett.model.accounts import BY_NAME
from torchett.report.pages.strips import WIDE

_START = tuple(name for name, one in BY_NAME.items() if one.kind == "start")
_ORDER = ("detect", "restart_gap", *_START, "unsaved")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStep:
    """One account of all recoveries, and its place after those before it."""

    name: str
    css: str
    seconds: float  # rank-seconds
    percent: float  # of the job's time
    x: float
    width: float


def cost_parts(ledger: Ledger, cost: FailureCost) -> list[tuple[str, int]]:
    """The accounts of one failure, those of the next attempt's start in the chart's order."""
    following = [a for a in ledger.attempts if a.tenure.attempt.number > cost.attempt][:1]
    again = following[0].accounts if following else {}
    started = [(name, again[name]) for name in _START if name in again]
    first = [("detect", cost.detect_ns), ("restart_gap", cost.restart_gap_ns)]
    return [*first, *started, ("unsaved", cost.unsaved_ns)]


def recovery(ledger: Ledger, costs: Sequence[FailureCost]) -> list[RecoveryStep]:
    """All failures as one waterfall."""
    sums: dict[str, int] = {}
    for cost in costs:
        for name, ns in cost_parts(ledger, cost):
            sums[name] = sums.get(name, 0) + ns
    whole, found, at = max(sum(sums.values()), 1), [], 0.0
    for name in _ORDER:
        ns = sums.get(name, 0)
        width = WIDE * ns / whole
        if ns:
            found.append(
                RecoveryStep(
                    name=name,
                    css=f"a-{name}",
                    seconds=ns / 1e9,
                    percent=100 * ns / max(ledger.rank_ns, 1),
                    x=round(at, 2),
                    width=round(max(width, 1), 2),
                )
            )
        at += width
    return found
