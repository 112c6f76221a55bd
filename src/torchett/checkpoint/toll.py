"""The toll of saves: what each cost this rank's loop, and how rank 0 learns it from all.

ckpt.step(7)   call ├──┤
step 8                  … slower … ├ fence ┤       the copy, and the upload, beside it
step 9                  … slower …
durable                            rank 0 is told of both, and keeps the longest block and the mean
                                   slowdown: once all ranks have told, or when it saves again
"""

import json
from statistics import fmean

from torchett.checkpoint.interval import AutoInterval
from torchett.checkpoint.pace import Pace
from torchett.checkpoint.ranks import Ranks
from torchett.checkpoint.saves import Copy


class Toll:
    """What saves cost; `auto` is what is to know it, on rank 0."""

    def __init__(self, auto: AutoInterval, ranks: Ranks) -> None:
        self._auto, self._ranks = auto, ranks
        self._pace = Pace()
        # Number, seconds of its call, its copy, whether it came early:
        self._last: tuple[int, float, Copy, bool] | None = None
        self._open: tuple[int, bool] | None = None  # on rank 0: told here, perhaps not by all

    def step(self, seconds: float, beside_save: bool) -> None:
        """A step took so long."""
        self._pace.step(seconds, beside_save)

    def save_begins(self) -> None:
        self._pace.save_begins()

    def called(self, number: int, seconds: float, copy: Copy, *, early: bool) -> None:
        """The call is over that began a save; the save is not. An early one tells of no other."""
        self._last = number, seconds, copy, early

    def over(self) -> None:
        """The last save is over on this rank: tell what it cost; rank 0 settles once all have."""
        if self._last is not None:
            number, seconds, copy, early = self._last
            self._last = None
            blocked_s = seconds + copy.waited_s()
            slower_s = None if early else self._pace.slowdown_s(blocked_s)
            self._ranks.tell(f"cost/{number}/{self._ranks.rank}", json.dumps([blocked_s, slower_s]))
            self._ranks.count(f"cost/{number}", 1)
            self._open = (number, early) if self._ranks.rank == 0 else None
        if (
            self._open is not None
            and self._ranks.count(f"cost/{self._open[0]}") == self._ranks.size
        ):
            self.settle()

    def settle(self) -> None:
        """Being rank 0, take note of what the last save cost, as far as that is told."""
        if self._open is None:
            return
        (number, early), self._open = self._open, None
        told = [self._ranks.told(f"cost/{number}/{rank}") for rank in range(self._ranks.size)]
        costs = [json.loads(text) for text in told if text is not None]
        longest_s = max(blocked for blocked, _ in costs)
        if early:
            self._auto.observe_early(longest_s)
            return
        self._auto.observe_blocking(longest_s)
        slower = [seconds for _, seconds in costs if seconds is not None]
        if slower:
            self._auto.observe_slowdown(fmean(slower))
