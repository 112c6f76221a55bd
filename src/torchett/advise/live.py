"""Whether a running job should save now: the steps at risk against the cost of a save.

durable              now       T*
───┼──────────────────┼─────────┼──►     T*  the interval that wastes least
   └── lost by a kill ┘
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchett.ledger.metrics.saves import SaveCosts
from torchett.ledger.rules.window import Tenure
from torchett.levers.checkpoint.interval.failure_rate import FailureRate
from torchett.levers.checkpoint.interval.interval import optimum_s
from torchett.model.values import Checkpoint

PRIOR_MTBF_S = 8 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveNow:
    """The verdict, and the numbers that lead to it."""

    save: bool
    at_risk_s: float  # since progress was last durable
    best_interval_s: float | None
    blocking_s: float | None
    mtbf_s: float

    @property
    def sentence(self) -> str:
        if self.best_interval_s is None or self.blocking_s is None:
            return (
                f"unknown: {self.at_risk_s:.0f} s are not durable, and the cost of a save was not"
                " measured yet: save once"
            )
        word = "save now" if self.save else "not yet"
        return (
            f"{word}: {self.at_risk_s:.0f} s are not durable, and an interval of"
            f" {self.best_interval_s:.0f} s wastes least (a save blocks {self.blocking_s:.2g} s,"
            f" a failure every {self.mtbf_s / 3600:.1f} h)"
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "sentence": self.sentence}


def save_now(
    saves: SaveCosts, checkpoints: Sequence[Checkpoint], current: Tenure, now_ns: int
) -> SaveNow:
    """The verdict for the running attempt: at risk is all since its start or last durable save."""
    number = current.attempt.number
    durable = [c.durable_ns for c in checkpoints if c.attempt == number]
    since_ns = max(durable, default=current.start_ns)
    at_risk_s = max(0, now_ns - since_ns) / 1e9
    rate = FailureRate(prior_mtbf_s=PRIOR_MTBF_S).after(saves.exposure_s, saves.failures)
    best_s = None if saves.blocking_s is None else optimum_s(saves.blocking_s, rate.mtbf_s)
    return SaveNow(
        save=best_s is not None and at_risk_s >= best_s,
        at_risk_s=at_risk_s,
        best_interval_s=best_s,
        blocking_s=saves.blocking_s,
        mtbf_s=rate.mtbf_s,
    )
