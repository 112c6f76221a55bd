"""The result of a bench: the ledger of each side, and how much less time was wasted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchett.bench.levers import LEVERS, UNBROKEN, only, without
from torchett.bench.side import Finished
from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.runs.reader import RunReader


@dataclass(frozen=True, slots=True, kw_only=True)
class SideResult:
    """One side with its ledger."""

    title: str
    ledger: Ledger
    history: History
    digest: str | None
    starts: int
    pulse_s: float | None

    @property
    def wasted_s(self) -> float:
        """Rank-seconds that were not effective."""
        return (self.ledger.rank_ns - self.ledger.groups["effective"]) / 1e9

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "wasted_s": self.wasted_s,
            "digest": self.digest,
            "starts": self.starts,
            "pulse_s": self.pulse_s,
            "ledger": self.ledger.to_json(),
        }


def settled(finished: Finished, title: str) -> SideResult:
    """The outcome of a job that has ended."""
    reader = RunReader(finished.run).poll()
    return SideResult(
        title=title,
        ledger=reader.ledger(),
        history=reader.history(),
        digest=finished.digest,
        starts=finished.starts,
        pulse_s=finished.pulse_s,
    )


def saved_percent(stock: SideResult, ours: SideResult) -> float:
    """By how many percent less time was wasted."""
    return 100 * (1 - ours.wasted_s / stock.wasted_s) if stock.wasted_s else 0.0


def same_weights(outcomes: Sequence[SideResult]) -> bool | None:
    """Whether all sides ended with the same bits; None if one printed no digest."""
    digests = {outcome.digest for outcome in outcomes}
    return None if None in digests else len(digests) == 1


def measured_apart(same: bool | None, *, on_gpu: bool) -> str | None:
    """An explanation of different weights on a GPU, where two stock jobs may differ; else None."""
    if same is not False or not on_gpu:
        return None
    return (
        "on a GPU, inductor chooses by measurement which matrix products to pad, and this changes"
        " the last bits: TORCHINDUCTOR_SHAPE_PADDING=0 makes the weights of both sides comparable"
    )


def lever_rows(outcomes: Mapping[str, SideResult]) -> list[dict[str, Any]]:
    """What each lever wins alone, and what its absence costs, from `sides(each=True)`."""
    rows = []
    for lever in LEVERS:
        base, alone = (
            outcomes[only(chosen)] for chosen in (lever.needs, lever.needs | {lever.name})
        )
        left_out = outcomes[without(lever)]
        rows.append(
            {
                "lever": lever.title,
                "needs": sorted(lever.needs),
                "alone_s": base.wasted_s - alone.wasted_s,
                "left_out_s": left_out.wasted_s - outcomes["torchett"].wasted_s,
                "alone_ett_percent": alone.ledger.ett_percent,
                "left_out_ett_percent": left_out.ledger.ett_percent,
                "same_weights": same_weights([outcomes[UNBROKEN], alone, left_out]),
            }
        )
    return rows
