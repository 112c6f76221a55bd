"""When to save: every so many steps, every so many seconds, or as often as it pays.

Rank 0 turns seconds into the number of a step to come, so that all ranks save at the same one.
"""

import math
import re
import time
from collections.abc import Callable
from typing import Any

from torchett.levers.checkpoint.errors import CheckpointError
from torchett.levers.checkpoint.interval.interval import AutoInterval

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SEEN = 3  # steps that are timed before one is predicted
_SOON_S = 2.0  # while what the first save costs is being learned


class Schedule:
    """`every` is a number of steps, seconds as "600s" or "10m", or "auto"."""

    def __init__(
        self,
        every: int | str,
        auto_state: dict[str, Any] | None = None,
        mtbf_s: float | None = None,
        **auto: float,
    ) -> None:
        self.steps: int | None = None
        self.seconds: float | None = None
        self.auto: AutoInterval | None = None
        if isinstance(every, bool):
            raise _wrong(every)
        if isinstance(every, int):
            if every < 1:
                raise _wrong(every)
            self.steps = every
        elif every == "auto":
            prior = {} if mtbf_s is None else {"prior_mtbf_s": mtbf_s}
            self.auto = AutoInterval(state=auto_state, **prior, **auto)
        else:
            found = re.fullmatch(r"([0-9.]+)\s*(s|m|min|h|)", str(every))
            try:
                self.seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
            except ValueError:
                self.seconds = 0.0
            if not self.seconds > 0:
                raise _wrong(every)
        self._next: int | None = None  # the step at which rank 0 wants to save or look again
        self._look = False
        self._last_save_s = time.monotonic()
        self._has_saved = False
        self._step_s: list[float] = []
        self._last: tuple[int, float] | None = None

    def passed(self, step: int) -> float | None:
        """A step is over: remember how long it took, and say so if that is known."""
        now, took_s = time.monotonic(), None
        if self._last is not None and step > self._last[0]:
            took_s = (now - self._last[1]) / (step - self._last[0])
            self._step_s.append(took_s)
            del self._step_s[:-20]
        self._last = (step, now)
        return took_s

    def step_s(self) -> float:
        """The median time of the last steps; 0 if it is not known."""
        times = sorted(self._step_s)
        return times[len(times) // 2] if times else 0.0

    def due(self, step: int, agree: Callable[[str, Callable[[], str]], str]) -> bool:
        """Whether to save after this step, the same on every rank."""
        if self.steps is not None:
            wanted = (step + 1) % self.steps == 0 or self._next == step
            self._next = None if wanted else self._next
            return wanted
        if self._next is not None and step < self._next:
            return False
        # Rank 0 says what this step is: one to save at, or one to look again after.
        said = agree(f"due/{step}", lambda: self._choose(step))
        at = int(said)
        self._next = None if at == step else at
        return at == step

    def _choose(self, step: int) -> str:
        interval = self.interval_s()
        left = interval - (time.monotonic() - self._last_save_s)
        step_s = self.step_s()
        if left <= step_s / 2:
            return str(step)
        if len(self._step_s) < _SEEN:
            return str(step + 1)
        if self._has_saved and self.auto is not None and self.auto.blocking_s is None:
            left = min(left, _SOON_S)
        # Half of what is left, then again: a step time is only an estimate.
        ahead = left / step_s if left < 8 * step_s else left / step_s / 2
        return str(step + max(1, math.floor(ahead)))

    def interval_s(self) -> float:
        """Seconds between two saves as things stand."""
        if self.auto is not None:
            return self.auto.interval_s()
        return self.seconds if self.seconds is not None else math.inf

    def saved(self) -> None:
        """A save began."""
        self._last_save_s = time.monotonic()
        self._has_saved = True

    def last_saved(self, age_s: float) -> None:
        """The attempt before saved last so many seconds ago."""
        self._last_save_s = time.monotonic() - age_s

    def defer(self, step: int) -> None:
        """It cannot be saved at once: look again after the next step."""
        self._next = step + 1


def _wrong(every: object) -> CheckpointError:
    return CheckpointError(
        f'every={every!r}: expected steps as 500, seconds as "600s" or "10m", or "auto"'
    )
