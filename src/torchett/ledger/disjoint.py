"""Overlapping intervals as disjoint pieces: the interval that began last owns an instant.

    outer  ├──────────────────────┤
    inner       ├──────┤
    late            ├───────┤
    owner  ooooo iiii lllllll ooooo

Most intervals overlap nothing and pass straight through; only clusters that do are walked.
"""

import numpy as np

from torchett.ledger.rows import Ints
from torchett.model.overlap import latest_wins


def disjoint(a: Ints, b: Ints, t0: Ints, t1: Ints) -> tuple[Ints, Ints, Ints]:
    """Pieces (begin, end, which interval) in order of time.

    `a` and `b` are where intervals begin and end on the axis, clipped; `t0` and `t1` the times as
    recorded, by which overlaps are settled.
    """
    order = np.flatnonzero(a < b)
    order = order[np.argsort(a[order], kind="stable")]
    sa, sb = a[order], b[order]
    if len(order) < 2:
        return sa, sb, order
    reach = np.maximum.accumulate(sb)
    cluster = np.concatenate(([0], np.cumsum(sa[1:] >= reach[:-1])))
    size = np.bincount(cluster)
    shared = size[cluster] > 1
    if not shared.any():
        return sa, sb, order
    tangled = np.sort(order[shared])  # back in recorded order, which settles the last tie
    walked = list(
        latest_wins(
            list(
                zip(
                    a[tangled].tolist(),
                    b[tangled].tolist(),
                    t0[tangled].tolist(),
                    t1[tangled].tolist(),
                    strict=True,
                )
            )
        )
    )
    wa, wb, ws = (np.array(column, dtype=np.int64) for column in zip(*walked, strict=True))
    pa = np.concatenate((sa[~shared], wa))
    pb = np.concatenate((sb[~shared], wb))
    ps = np.concatenate((order[~shared], tangled[ws]))
    again = np.argsort(pa, kind="stable")
    return pa[again], pb[again], ps[again]
