"""A timeline as a row of cells, each under the account that holds most of it.

segments ├──── start ────┤├ step ┤├w┤├ step ┤├w┤ …
cells    ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒████████████████████
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from torchett.ledger.rows import Ints
from torchett.ledger.timeline import Timeline
from torchett.model.accounts import GROUPS, Kind

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Cells `begin` to `end` of a row, under one account of one group."""

    begin: int
    end: int
    account: str
    group: Kind


def shown_ranks(ranks: int, most: int) -> list[int]:
    """At most that many ranks, spread evenly from the first to the last."""
    return sorted({int(rank) for rank in np.linspace(0, ranks - 1, min(ranks, most))})


def boxes(segments: Timeline, lo_ns: int, hi_ns: int, cells: int) -> Iterator[Box]:
    """The row of these segments between two times; cells without an owner are left out."""
    if not len(segments) or hi_ns <= lo_ns:
        return
    keys, which = np.unique(
        segments.group.astype(np.int64) << 32 | segments.account, return_inverse=True
    )
    edges = lo_ns + (np.arange(cells + 1, dtype=np.int64) * (hi_ns - lo_ns)) // cells
    share = np.array(
        [
            np.diff(time_upto(segments.t0_ns[which == i], segments.t1_ns[which == i], edges))
            for i in range(len(keys))
        ]
    )
    owner = np.where(share.max(axis=0) > 0, share.argmax(axis=0), -1)
    for key, run in groupby(enumerate(owner.tolist()), key=lambda cell: cell[1]):
        places: Sequence[int] = [place for place, _ in run]
        if key >= 0:
            group, account = divmod(int(keys[key]), 1 << 32)
            yield Box(
                begin=places[0],
                end=places[-1] + 1,
                account=segments.names[account],
                group=GROUPS[group],
            )


def time_upto(begins: Ints, ends: Ints, at: Ints) -> Floats:
    """How much time these intervals cover up to each instant, in ns: overlaps count twice.

    What has begun by then, measured from its begin, less what is over, measured from its end.
    """
    low = int(at[0])
    since, until = (np.sort((t - low).astype(np.float64)) for t in (begins, ends))
    points = (at - low).astype(np.float64)
    return _ages(since, points) - _ages(until, points)


def _ages(times: Floats, at: Floats) -> Floats:
    """At each instant: the sum of how long ago each earlier one of `times` (sorted) was."""
    before = np.searchsorted(times, at, "right")
    sums = np.concatenate(([0.0], np.cumsum(times)))
    return np.asarray(before * at - sums[before], dtype=np.float64)
