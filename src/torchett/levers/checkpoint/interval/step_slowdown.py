"""What a save costs the steps beside it: how much longer they take than those without one.

    steps, ms  │ 20 │ 21 │ 20 │ 27 │ 26 │ 28 │ 20 │ 21 │ …
    save                      ├ copied, uploaded ┤            21 ms, what its call took included

A step that takes more than twice as long as usual does so for a reason of its own: an evaluation,
data that are late. It counts as twice as long.
"""

from collections import deque
from statistics import fmean, median

_REMEMBERED = 64
_ENOUGH = 8  # steps without a save before their usual time is known


class Pace:
    """The steps of a loop, with a save beside them and without."""

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=_REMEMBERED)
        self._usual_s = 0.0  # of the steps before this save; 0 if it is not known
        self._excess_s = 0.0

    def save_begins(self) -> None:
        """From now on steps have a save beside them."""
        self._excess_s = self._usual_s = 0.0
        if len(self._plain) >= _ENOUGH:
            most = 2 * median(self._plain)
            self._usual_s = fmean(min(seconds, most) for seconds in self._plain)

    def step(self, seconds: float, beside_save: bool) -> None:
        """A step took so long."""
        if not beside_save:
            self._plain.append(seconds)
        elif self._usual_s:
            self._excess_s += min(seconds, 2 * self._usual_s) - self._usual_s

    def slowdown_s(self, blocked_s: float) -> float | None:
        """What the last save's steps took beyond the usual and what it blocked; may be noise.

        None if the usual was not known.
        """
        return self._excess_s - blocked_s if self._usual_s else None
