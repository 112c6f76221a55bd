"""Rule 3: which steps' progress survived.

    attempt 0   0 1 2 3 4 5 6 7 8 9 ✗             checkpoint of step 5 is durable
    attempt 1               6 7 8 9 10 11 …       resumes at r = 6
                ╰── kept ──╯╰ lost ╯

Every execution of a step ≥ r in earlier attempts is unsaved, and so are the checkpoints of them.
An attempt that took the state of a peer, a replica group that trained on, makes nothing void.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchett.ledger.rows import Ints, totals
from torchett.model.values import Checkpoint

ALL = np.iinfo(np.int64).max  # a threshold above every index: nothing is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Executions:
    """Steps of one attempt, over all ranks: index, how many from there, and what they keep."""

    index: Ints
    count: npt.NDArray[np.int32]
    net_ns: Ints
    lowest: int
    highest: int
    total_ns: int

    @staticmethod
    def of(index: Ints, count: npt.NDArray[np.int32], net_ns: Ints) -> "Executions":
        return Executions(
            index=index,
            count=count,
            net_ns=net_ns,
            lowest=int(index.min()),
            highest=int((index + count).max()) - 1,
            total_ns=int(totals(net_ns)),
        )

    def above(self, threshold: int) -> tuple[int, int]:
        """Nanoseconds in steps ≥ threshold, and how many of them are a run's share, estimated."""
        if threshold > self.highest:
            return 0, 0
        if threshold <= self.lowest:
            return self.total_ns, 0
        share = self.count - np.clip(threshold - self.index, 0, self.count)
        part = self.net_ns * share // self.count
        split = (share > 0) & (share < self.count)
        return int(totals(part)), int(totals(self.net_ns[split]))

    def highest_below(self, threshold: int) -> int | None:
        """The highest step below the threshold that was executed."""
        if threshold > self.highest:
            return self.highest
        if threshold <= self.lowest:
            return None
        last = np.minimum(self.index + self.count, threshold) - 1
        return int(last[self.index < threshold].max())


def above(parts: Sequence[Executions], threshold: int) -> tuple[int, int]:
    """`Executions.above`, over all of an attempt's parts."""
    net = estimated = 0
    for part in parts:
        if part.highest >= threshold:
            more, guessed = part.above(threshold)
            net, estimated = net + more, estimated + guessed
    return net, estimated


def highest_below(parts: Sequence[Executions], threshold: int) -> int | None:
    """`Executions.highest_below`, over all of an attempt's parts."""
    found = [part.highest_below(threshold) for part in parts]
    return max((index for index in found if index is not None), default=None)


def resumed_below(resumes: Sequence[int | None]) -> Ints:
    """Per attempt: the lowest step at which any later attempt resumed (ALL: none did).

    >>> resumed_below([0, 6, None, 3, 9]).tolist()[:4]
    [3, 3, 3, 9]
    """
    lowest = np.array([ALL if r is None else r for r in resumes] + [ALL], dtype=np.int64)
    return np.asarray(np.minimum.accumulate(lowest[::-1])[::-1][1:])


def last_durable(checkpoints: Sequence[Checkpoint], limits: dict[int, int]) -> int:
    """The highest checkpointed step that no later resume made void; −1 without one."""
    kept = [c.step for c in checkpoints if c.step < limits.get(c.attempt, -1)]
    return max(kept, default=-1)
