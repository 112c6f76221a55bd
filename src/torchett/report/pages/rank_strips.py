"""A timeline of each rank on the job's axis, for the page that is one file.

rank 0  ▒▒▒▒▒▒▒▒██████████████▚╳╳╳██████
rank 1  ▒▒▒▒▒▒▒▒▒█████████████▚╳╳╳██████
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from torchett.ledger.ledger import Ledger
from torchett.ledger.timeline import Timeline
from torchett.report.pages.strips import Piece, strip


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStrip:
    """One rank's time over all attempts."""

    rank: int
    pieces: list[Piece]


def rank_strips(ledger: Ledger, segments: Timeline) -> Iterator[RankStrip]:
    """A strip for each rank of the segments, in order of ranks."""
    begin, end = ledger.window.start_ns, ledger.window.end_ns
    for rank in np.unique(segments.rank).tolist():
        yield RankStrip(rank=rank, pieces=strip(segments.take(segments.rank == rank), begin, end))
