"""A job's timeline as tiles of cells: one byte a cell, the account that holds most of it.

level 0   ┌ tile 0,0 ┐            the whole job across one tile of CELLS cells
level 1   ┌ 0,0 ┬ 1,0 ┐           twice as many; a tile is LANES ranks high
          ├ 0,1 ┼ 1,1 ┤           0: nobody's time; n: the account `palette[n − 1]`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from torchett.ledger.rows import Ints
from torchett.ledger.timeline import Timeline
from torchett.model.accounts import GROUPS

CELLS: Final = 512
LANES: Final = 256
MOST_LEVEL: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Paint:
    """One colour of the picture: an account in a group."""

    account: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Under:
    """What lies at one instant of one rank."""

    attempt: int
    rank: int
    account: str
    group: str
    begin_s: float  # since the job's window began
    seconds: float
    step: int | None
    steps: int


class Lanes:
    """Segments by rank and time, ready to be cut into tiles."""

    def __init__(self, segments: Timeline, start_ns: int, end_ns: int, ranks: int) -> None:
        order = np.argsort(segments.rank, kind="stable")  # attempts of a rank are in order already
        self._segments = held = segments.take(order)  # type: ignore[arg-type]
        self.start_ns, self.end_ns, self.ranks = start_ns, max(end_ns, start_ns + 1), ranks
        names = len(held.names)
        keys = held.group.astype(np.int64) * names + held.account
        known = np.flatnonzero(np.bincount(keys, minlength=1))
        paint = np.zeros(int(known[-1]) + 1 if len(known) else 1, dtype=np.int64)
        paint[known] = np.arange(len(known))
        self._paint = paint[keys]
        self.palette: Sequence[Paint] = [
            Paint(account=held.names[key % names], group=GROUPS[key // names])
            for key in known.tolist()
        ]
        self._edges = np.searchsorted(held.rank, np.arange(ranks + 1))

    def tile(self, level: int, column: int, row: int) -> bytes:
        """The cells of one tile, rank by rank."""
        span = self.end_ns - self.start_ns
        tiles = 1 << level
        lo = self.start_ns + span * column // tiles
        hi = self.start_ns + span * (column + 1) // tiles
        first = row * LANES
        lanes = min(LANES, self.ranks - first)
        if lanes <= 0 or hi <= lo:
            return b""
        which, lane = self._between(first, lanes, lo, hi)
        cells = self._cells(which, lane, lo, hi, lanes)
        return cells.tobytes()

    def _between(self, first: int, lanes: int, lo: int, hi: int) -> tuple[Ints, Ints]:
        """The segments of these ranks between two times, and the lane of each."""
        held, edges = self._segments, self._edges
        begins, counts = [], []
        for rank in range(first, first + lanes):
            a, b = int(edges[rank]), int(edges[rank + 1])
            begin = a + int(np.searchsorted(held.t1_ns[a:b], lo, "right"))
            end = a + int(np.searchsorted(held.t0_ns[a:b], hi, "left"))
            begins.append(begin)
            counts.append(max(end - begin, 0))
        count = np.array(counts, dtype=np.int64)
        lane = np.repeat(np.arange(lanes), count)
        upto = np.cumsum(count) - count
        which = np.arange(int(count.sum())) - upto[lane] + np.array(begins)[lane]
        return which.astype(np.int64), lane.astype(np.int64)

    def _cells(
        self, which: Ints, lane: Ints, lo: int, hi: int, lanes: int
    ) -> npt.NDArray[np.uint8]:
        """For each cell the paint that covers most of it."""
        held, paints = self._segments, len(self.palette)
        scale = CELLS / (hi - lo)
        a = np.clip((held.t0_ns[which] - lo) * scale, 0, CELLS)
        b = np.clip((held.t1_ns[which] - lo) * scale, 0, CELLS)
        from_cell = np.minimum(a.astype(np.int64), CELLS - 1)
        to_cell = np.minimum(np.ceil(b).astype(np.int64), CELLS)
        count = np.maximum(to_cell - from_cell, 1)
        piece = np.repeat(np.arange(len(which)), count)
        at = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        cell = from_cell[piece] + at
        covered = np.minimum(b[piece], cell + 1) - np.maximum(a[piece], cell)
        key = (lane[piece] * CELLS + cell) * paints + self._paint[which][piece]
        sums = np.bincount(key, np.maximum(covered, 0), lanes * CELLS * paints)
        sums = sums.reshape(lanes, CELLS, paints)
        best = sums.argmax(axis=2) + 1
        return np.where(sums.max(axis=2) > 0, best, 0).astype(np.uint8)

    def under(self, rank: int, at_s: float) -> Under | None:
        """What this rank did at this time; None where nobody owns it."""
        if not 0 <= rank < self.ranks:
            return None
        held = self._segments
        a, b = int(self._edges[rank]), int(self._edges[rank + 1])
        t = self.start_ns + round(at_s * 1e9)
        i = a + int(np.searchsorted(held.t0_ns[a:b], t, "right")) - 1
        if i < a or not held.t0_ns[i] <= t < held.t1_ns[i]:
            return None
        step = int(held.step[i])
        return Under(
            attempt=int(held.attempt[i]),
            rank=rank,
            account=held.names[int(held.account[i])],
            group=GROUPS[int(held.group[i])],
            begin_s=(int(held.t0_ns[i]) - self.start_ns) / 1e9,
            seconds=(int(held.t1_ns[i]) - int(held.t0_ns[i])) / 1e9,
            step=None if step < 0 else step,
            steps=int(held.count[i]),
        )
