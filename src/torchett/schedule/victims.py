"""Which jobs to stop so that enough GPUs come free: in an order, or at least cost."""

import numpy as np

from torchett.schedule.values import Floats, Ints


def first_that_cover(order: Ints, gpus: Ints, need: int) -> Ints:
    """Rows of `gpus`, taken in `order` until they cover `need`, without those that are not needed.

    This is what Kueue does: add candidates in order, then give back, from the last but one to the
    first, each that the others make up for.

        order  a(1) b(2) c(8), need 8  ──►  a b c  ──►  c
    """
    sums = np.cumsum(gpus[order])
    count = int(np.searchsorted(sums, need)) + 1
    taken = order[:count]
    if count > len(order):
        return order  # even all of them do not cover
    over = int(sums[count - 1]) - need
    keep = np.ones(count, dtype=bool)
    for at in range(count - 2, -1, -1):
        if over <= 0:
            break
        size = int(gpus[taken[at]])
        if size <= over:
            keep[at] = False
            over -= size
    return taken[keep]


def cheapest_cover(costs: Floats, gpus: Ints, need: int) -> Ints:
    """Rows whose GPUs cover `need` at the least total cost; all rows where none do.

    Exact, by dynamic programming over GPUs covered. A single large job competes with many small
    ones on equal terms. Of each size only the ceil(need / size) cheapest jobs can be in the
    answer, which keeps the table small however many jobs run.
    """
    if need <= 0:
        return np.empty(0, dtype=np.int64)
    if int(gpus.sum()) <= need:
        return np.arange(len(gpus), dtype=np.int64)
    rows = _cheapest_of_each_size(costs, gpus, need)
    best = np.full(need + 1, np.inf)  # least cost that covers at least so many GPUs
    best[0] = 0.0
    taken = np.zeros((len(rows), need + 1), dtype=bool)
    for at, row in enumerate(rows):
        size = min(int(gpus[row]), need)
        offered = np.empty(need + 1)
        offered[size:] = best[: need + 1 - size]
        offered[:size] = best[0]
        offered += costs[row]
        np.less(offered, best, out=taken[at])
        np.minimum(offered, best, out=best)
    chosen, left = [], need
    for at in range(len(rows) - 1, -1, -1):
        if left > 0 and taken[at, left]:
            chosen.append(int(rows[at]))
            left = max(0, left - int(gpus[rows[at]]))
    return np.array(sorted(chosen), dtype=np.int64)


def _cheapest_of_each_size(costs: Floats, gpus: Ints, need: int) -> Ints:
    """Rows worth a look, cheapest first within a size, sizes ascending."""
    rows = []
    for size in np.unique(gpus):
        of_size = np.flatnonzero(gpus == size)
        count = -(-need // int(size))
        if len(of_size) > count:
            of_size = of_size[np.argpartition(costs[of_size], count - 1)[:count]]
        rows.append(of_size[np.lexsort((of_size, costs[of_size]))])
    return np.concatenate(rows)
