"""Other published definitions of effective time, as views of one record."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from torchett.ledger.ledger import Ledger
from torchett.ledger.rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One definition of the share of useful time."""

    name: str
    who: str
    sentence: str
    percent: Callable[[Ledger, Rows], float]
    estimated: Callable[[Ledger, Rows], bool] = lambda ledger, rows: False


def _meta(ledger: Ledger, rows: Rows) -> float:
    return ledger.ett_percent


def _goodput(ledger: Ledger, rows: Rows) -> float:
    """Gaps between starts of steps that survived, on rank 0."""
    window = ledger.window
    if not window.tenures or window.end_ns <= window.tenures[0].start_ns:
        return 0.0
    productive = 0
    for mine, limit in _steps_of_rank_0(ledger, rows):
        # Of a folded block the start of a step inside is where it would be if all took as long.
        last = mine.count - 1 if limit is None else np.minimum(mine.count - 1, limit - mine.index)
        starts = mine.t0_ns + (mine.t1_ns - mine.t0_ns) * last // mine.count
        if len(mine):
            productive += int(starts.max() - mine.t0_ns.min())
    return 100 * productive / (window.end_ns - window.tenures[0].start_ns)


def _splits_a_block(ledger: Ledger, rows: Rows) -> bool:
    """Whether the first lost step of an attempt lies inside a folded block."""
    return any(
        limit is not None and bool(((mine.index < limit) & (limit < mine.index + mine.count)).any())
        for mine, limit in _steps_of_rank_0(ledger, rows)
    )


def _steps_of_rank_0(ledger: Ledger, rows: Rows) -> Iterator[tuple[Rows, int | None]]:
    """Per attempt rank 0's steps up to the first that was lost, and the number of that one."""
    lost = _lost_from(ledger)
    for tenure in ledger.window.tenures:
        number = tenure.attempt.number
        limit = lost.get(number)
        mine = rows.take(rows.is_step & (rows.attempt == number) & (rows.rank == 0))
        yield mine if limit is None else mine.take(mine.index <= limit), limit


def _megascale(ledger: Ledger, rows: Rows) -> float:
    """Distinct steps that survived × the mean time of a step."""
    steps = rows.take(rows.is_step & (rows.rank == 0))
    if not len(steps) or ledger.last_step is None or not ledger.window_ns:
        return 0.0
    mean_ns = float((steps.t1_ns - steps.t0_ns).sum() / steps.count.sum())
    lost = _lost_from(ledger)
    kept = 0
    for number in np.unique(steps.attempt).tolist():
        mine = steps.take(steps.attempt == number)
        limit = lost.get(number)
        upto = mine.count if limit is None else np.clip(limit - mine.index, 0, mine.count)
        kept += int(upto.sum())
    return 100 * kept * mean_ns / ledger.window_ns


def _ettr(ledger: Ledger, rows: Rows) -> float:
    waiting = (ledger.window.queue_ns + ledger.window.requeue_ns) * ledger.ranks
    total = ledger.rank_ns + waiting
    return 100 * ledger.accounts.get("effective", 0) / total if total else 0.0


def _lost_from(ledger: Ledger) -> dict[int, int]:
    """Per attempt that lost steps: the first of them."""
    first: dict[int, int] = {}
    for loss in ledger.losses:
        first[loss.attempt] = min(loss.first_step, first.get(loss.attempt, loss.first_step))
    return first


DEFINITIONS: Final[dict[str, Definition]] = {
    definition.name: definition
    for definition in (
        Definition(
            name="meta",
            who="Meta, Effective Training Time",
            sentence="new data consumed ÷ allocated time, over all ranks",
            percent=_meta,
        ),
        Definition(
            name="goodput",
            who="ml-goodput-measurement",
            sentence="gaps between starts of surviving steps on rank 0 ÷ first start → end",
            percent=_goodput,
            estimated=_splits_a_block,
        ),
        Definition(
            name="megascale",
            who="MegaScale",
            sentence="surviving steps × mean step time ÷ total time (a mean hides stalls)",
            percent=_megascale,
        ),
        Definition(
            name="ettr",
            who="Kokolis et al., ETTR",
            sentence="effective time ÷ allocated time and time in the queue",
            percent=_ettr,
        ),
    )
}
