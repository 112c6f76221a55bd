"""What each save costs the training loop, measured on every rank and collected by rank 0.

ckpt.step(7)   call ├──┤
step 8                  … slower … ├ fence ┤       the copy, and the upload, beside it
step 9                  … slower …
durable                            each rank sends both to rank 0, which keeps the longest block
                                   and the mean slowdown: once all have sent, or at its next save
"""

import json
import os
from statistics import fmean

from torchett.levers.checkpoint.interval.interval import AutoInterval
from torchett.levers.checkpoint.interval.step_slowdown import Pace
from torchett.levers.checkpoint.store_coordinator import Ranks
from torchett.levers.checkpoint.upload.saves import Copy


def seconds_of_node(cpu_s: float) -> float:
    """How long all cores of the node are busy, if each of its ranks needs so many CPU seconds."""
    ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return cpu_s * ranks / (os.cpu_count() or 1)


class SaveCost:
    """Measures what saves cost; on rank 0 `auto` gets the result."""

    def __init__(self, auto: AutoInterval, ranks: Ranks, name: str = "cost") -> None:
        self._auto, self._ranks, self._name = auto, ranks, name
        self._pace = Pace()
        # Number, seconds of its call, its copy, whether it came early:
        self._last: tuple[int, float, Copy, bool] | None = None
        self._open: tuple[int, bool] | None = (
            None  # on rank 0: sent by this rank, perhaps not by all
        )
        self._read: list[str] = []  # keys of the last save that was settled

    def step(self, seconds: float, beside_save: bool) -> None:
        """A step took so long."""
        self._pace.step(seconds, beside_save)

    def save_begins(self) -> None:
        self._pace.save_begins()

    def called(self, number: int, seconds: float, copy: Copy, *, early: bool) -> None:
        """The call that began a save is over; the save goes on. An early one gives no slowdown."""
        self._last = number, seconds, copy, early

    def over(self) -> None:
        """The last save is over on this rank: send its cost; rank 0 sums up once all ranks have."""
        if self._last is not None:
            number, seconds, copy, early = self._last
            self._last = None
            blocked_s = seconds + copy.waited_s()
            slower_s = None if early else self._pace.slowdown_s(blocked_s)
            self._ranks.tell(
                f"{self._name}/{number}/{self._ranks.rank}", json.dumps([blocked_s, slower_s])
            )
            self._ranks.count(f"{self._name}/{number}", 1)
            self._open = (number, early) if self._ranks.rank == 0 else None
        if (
            self._open is not None
            and self._ranks.count(f"{self._name}/{self._open[0]}") == self._ranks.size
        ):
            self.settle()

    def settle(self) -> None:
        """On rank 0: use the costs of the last save that ranks have sent so far."""
        if self._open is None:
            return
        (number, early), self._open = self._open, None
        keys = [f"{self._name}/{number}/{rank}" for rank in range(self._ranks.size)]
        told = self._ranks.told_all(keys)
        self._ranks.forget(self._read)  # once more: a rank may have told after it was settled
        self._read = [*keys, f"{self._name}/{number}"]
        self._ranks.forget(self._read)
        costs = [json.loads(text) for text in told if text is not None]
        longest_s = max(blocked for blocked, _ in costs)
        if early:
            self._auto.observe_early(longest_s)
            return
        self._auto.observe_blocking(longest_s)
        slower = [seconds for _, seconds in costs if seconds is not None]
        if slower:
            self._auto.observe_slowdown(fmean(slower))
