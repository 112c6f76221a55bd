"""The toll of saves: what each cost this rank's loop, and how rank 0 learns it from all.

ckpt.step(7)   call ├──┤
step 8                  … slower … ├ fence ┤       the copy, and the upload, beside it
step 9                  … slower …
the next save: rank 0 is told of both and keeps the longest block, and the mean slowdown
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
        self._last: tuple[int, float, Copy] | None = None  # number, seconds of its call, its copy

    def step(self, seconds: float, beside_save: bool) -> None:
        """A step took so long."""
        self._pace.step(seconds, beside_save)

    def save_begins(self) -> None:
        self._pace.save_begins()

    def called(self, number: int, seconds: float, copy: Copy) -> None:
        """The call is over that began a save; the save is not."""
        self._last = number, seconds, copy

    def settle(self) -> None:
        """The last save is over: tell rank 0 what it cost; being rank 0, take note."""
        if self._last is None:
            return
        number, seconds, copy = self._last
        self._last = None
        blocked_s = seconds + copy.waited_s()
        cost = [blocked_s, self._pace.slowdown_s(blocked_s)]
        self._ranks.tell(f"cost/{number}/{self._ranks.rank}", json.dumps(cost))
        if self._ranks.rank == 0:
            told = [self._ranks.told(f"cost/{number}/{rank}") for rank in range(self._ranks.size)]
            costs = [json.loads(text) for text in told if text is not None]
            self._auto.observe_blocking(max(blocked for blocked, _ in costs))
            slower = [seconds for _, seconds in costs if seconds is not None]
            if slower:
                self._auto.observe_slowdown(fmean(slower))
