"""When the lines of a log were written, and what numbers stand in them."""

import re

from torchett.runs.importers.dialects import Dialect
from torchett.runs.importers.stamps import Reader


class LogClock:
    """When a line was written, in seconds."""

    def __init__(self, stamp: Reader, dialect: Dialect) -> None:
        self.stamp, self.stamped = stamp, True
        self._dialect = dialect
        self._now: float | None = None
        self._base = 0.0
        self._index = -1
        self.back_s = 0.0

    def read(self, line: str, step: re.Match[str] | None) -> float | None:
        """The line's time; never before that of the line before."""
        found = self.stamp(line) if self.stamped else self._own(step)
        if found is None:
            return None
        if self._now is not None and found < self._now:
            self.back_s = max(self.back_s, self._now - found)
            found = self._now
        self._now = found
        return found

    def _own(self, step: re.Match[str] | None) -> float | None:
        """Without stamps: elapsed times, or the sum of what steps took."""
        if step is None:
            return self._now
        elapsed = named_group(step, "elapsed")
        if elapsed is not None:
            seconds = 0.0
            for part in elapsed.split(":"):
                seconds = 60 * seconds + float(part)
            if self._now is not None and self._base + seconds < self._now:
                self._base = self._now  # a bar that starts again
            return self._base + seconds
        index, took = step_index(step), step_took_s(step)
        if index is None or took is None:
            return None
        stride = index - self._index if 0 <= self._index < index else 1
        self._index = index
        return (self._now or 0.0) + stride * took


def named_group(found: re.Match[str], name: str) -> str | None:
    """A named group, in whichever alternative of the pattern it stands."""
    named = found.re.groupindex
    return next((found[key] for key in (name, f"{name}_") if key in named and found[key]), None)


def step_index(found: re.Match[str]) -> int | None:
    """The step that a line is about, counted over all epochs."""
    text = named_group(found, "step")
    if text is None:
        text = next((g for g in found.groups() if g and g.isdigit()), None)
    if text is None or len(text) > 18:
        return None
    epoch, size = named_group(found, "epoch"), named_group(found, "size")
    return int(text) + (int(epoch) * int(size) if epoch and size else 0)


def step_took_s(found: re.Match[str]) -> float | None:
    """How long the step took, if its line says so."""
    millis, seconds = named_group(found, "millis"), named_group(found, "seconds")
    if millis is not None:
        return float(millis) / 1e3
    return float(seconds) if seconds is not None else None
