"""How long steps take on each rank, and which rank the others wait for."""

from dataclasses import dataclass, replace

import numpy as np

from torchett.ledger.rows import Rows
from torchett.ledger.rules.one_account import Lanes, sweep

_NOTABLE = 0.05  # of a step: below this no rank is a straggler


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpread:
    """One rank's steps in seconds, net of spans; the first of each attempt is left out."""

    rank: int
    steps: int
    least_s: float
    median_s: float
    longest_s: float
    late_s: float  # how much later than the first rank it begins a step, on average


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """The rank that holds the others up, and by how much a step."""

    rank: int
    by_s: float
    begins_late: bool  # else: its steps take longer


def spread(rows: Rows) -> list[RankSpread]:
    """The spread of every rank that has steps, in order of ranks."""
    steps = net_steps(rows)
    steps = steps.take(~_firsts(steps))
    found: list[RankSpread] = []
    if not len(steps):
        return found
    late = _lateness(steps)
    order = np.argsort(steps.rank, kind="stable")
    steps = steps.take(order)
    ranks, edges = np.unique(steps.rank, return_index=True)
    for rank, a, b in zip(ranks.tolist(), edges, [*edges[1:], len(steps)], strict=True):
        mine = steps.take(slice(int(a), int(b)))
        by_length = np.argsort(mine.median, kind="stable")
        upto = np.cumsum(mine.count[by_length])
        middle = by_length[np.searchsorted(upto, (upto[-1] + 1) // 2)]
        found.append(
            RankSpread(
                rank=rank,
                steps=int(upto[-1]),
                least_s=float(mine.least.min()),
                median_s=float(mine.median[middle]),
                longest_s=float(mine.most.max()),
                late_s=late.get(rank, 0.0),
            )
        )
    return found


def straggler(spreads: list[RankSpread]) -> Straggler | None:
    """The rank that is notably slower than the others, or that they notably wait for."""
    if len(spreads) < 2:
        return None
    typical = float(np.median([s.median_s for s in spreads]))
    latest = max(spreads, key=lambda s: s.late_s)
    others = max((s.late_s for s in spreads if s is not latest), default=0.0)
    if latest.late_s - others > _NOTABLE * typical:
        return Straggler(rank=latest.rank, by_s=latest.late_s, begins_late=True)
    slowest = max(spreads, key=lambda s: s.median_s)
    if slowest.median_s - typical > _NOTABLE * typical:
        return Straggler(rank=slowest.rank, by_s=slowest.median_s - typical, begins_late=False)
    return None


def net_steps(rows: Rows) -> Rows:
    """The steps, each single one's durations less what spans take of it (a checkpoint, say)."""
    if not rows.is_step.any():
        return Rows.none()
    keys = rows.attempt.astype(np.int64) << 32 | rows.rank
    names, lane = np.unique(keys, return_inverse=True)
    lo = np.full(len(names), np.iinfo(np.int64).max)
    hi = np.full(len(names), np.iinfo(np.int64).min)
    np.minimum.at(lo, lane, rows.t0_ns)
    np.maximum.at(hi, lane, rows.t1_ns)
    lanes = Lanes(lo_ns=lo, start_ns=lo, hi_ns=hi, from_ns=lo, begun=np.zeros(len(names), np.bool_))
    net = sweep(rows, lane, lanes, int(rows.account.max()) + 1).net_ns[rows.is_step] / 1e9
    steps = rows.take(rows.is_step)
    single = steps.count == 1
    return replace(
        steps,
        least=np.where(single, net, steps.least).astype(np.float32),
        median=np.where(single, net, steps.median).astype(np.float32),
        most=np.where(single, net, steps.most).astype(np.float32),
    )


def _firsts(steps: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Marks the first step of each rank in each attempt: it may hold a compile."""
    order = np.lexsort((steps.t0_ns, steps.rank, steps.attempt))
    new = np.ones(len(order), dtype=np.bool_)
    attempt, rank = steps.attempt[order], steps.rank[order]
    new[1:] = (np.diff(attempt) != 0) | (np.diff(rank) != 0)
    marks = np.zeros(len(order), dtype=np.bool_)
    marks[order[new]] = True
    return marks


def _lateness(steps: Rows) -> dict[int, float]:
    """Per rank: mean delay behind the first rank, over steps that all ranks kept in detail."""
    single = steps.take(steps.count == 1)
    ranks = len(np.unique(single.rank))
    if ranks < 2:
        return {}
    order = np.lexsort((single.rank, single.index, single.attempt))
    single = single.take(order)
    new = np.ones(len(single), dtype=np.bool_)
    new[1:] = (np.diff(single.attempt) != 0) | (np.diff(single.index) != 0)
    group = np.cumsum(new) - 1
    size = np.bincount(group)
    begin = np.full(len(size), np.iinfo(np.int64).max)
    np.minimum.at(begin, group, single.t0_ns)
    whole = size[group] == ranks
    delay = (single.t0_ns - begin[group])[whole] / 1e9
    rank = single.rank[whole]
    if not len(rank):
        return {}
    counts, sums = np.bincount(rank), np.bincount(rank, weights=delay)
    return {int(r): float(sums[r] / counts[r]) for r in np.unique(rank)}
