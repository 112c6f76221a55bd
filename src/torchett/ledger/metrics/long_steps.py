"""Steps so long that they may contain something other than training.

    s s s s s ──────────── 14.5 s ──────────── s s s s        median 1.2 ms

An unexplained pause inside a step cannot be distinguished from work, so such steps are named.
"""

from dataclasses import dataclass

import numpy as np

from torchett.ledger.ledger import Ledger
from torchett.ledger.metrics.spread import net_steps
from torchett.ledger.rows import Bools, Rows

TIMES = 10  # the median of its rank's steps, and
LONG_S = 1.0  # so much


@dataclass(frozen=True, slots=True, kw_only=True)
class LongSteps:
    """What they have in common; seconds are net of spans, and of effective steps alone."""

    count: int
    longest_s: float
    usual_s: float
    total_s: float
    percent_without: float  # the headline, if none of that was training


def long_steps(ledger: Ledger, rows: Rows) -> LongSteps | None:
    """The steps of more than ten times the median and a second; None if there are none."""
    long = rows.is_step & (rows.most > LONG_S)
    if not long.any():
        return None
    lane = rows.attempt.astype(np.int64) << 32 | rows.rank
    steps = net_steps(rows.take(np.isin(lane, np.unique(lane[long]))))
    steps = steps.take(_survived(ledger, steps))
    count, total, longest = 0, 0.0, 0.0
    usual: list[float] = []
    for rank in np.unique(steps.rank):
        mine = steps.take(steps.rank == rank)
        order = np.argsort(mine.median, kind="stable")
        upto = np.cumsum(mine.count[order])
        median = float(mine.median[order][np.searchsorted(upto, (upto[-1] + 1) // 2)])
        found = mine.take(mine.most > max(LONG_S, TIMES * median))
        if len(found):
            usual.append(median)
            count += len(found)  # of a folded block: one at least
            total += float(found.most.sum())
            longest = max(longest, float(found.most.max()))
    if not count:
        return None
    share = 1e11 * total / ledger.rank_ns if ledger.rank_ns else 0.0
    return LongSteps(
        count=count,
        longest_s=longest,
        usual_s=float(np.median(usual)),
        total_s=total,
        percent_without=max(ledger.ett_percent - share, 0.0),
    )


def _survived(ledger: Ledger, steps: Rows) -> Bools:
    """Marks the steps whose progress was not lost."""
    kept = np.ones(len(steps), dtype=np.bool_)
    for loss in ledger.losses:
        kept &= ~((steps.attempt == loss.attempt) & (steps.index >= loss.first_step))
    return kept
