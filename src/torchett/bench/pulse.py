"""The speed of the machine while a side runs: the time of a short fixed loop, once a second.

    stock      · · · · · · · ·     0.70 ms
    torchett   · · ˙ ˙ ˙ · ˙ ˙     0.91 ms     slower: other processes use the machine as well

Seconds of two sides can be compared only if the machine was equally fast for both. Where a job
leaves no core free, its own load slows the loop too; both sides do the same work.
"""

import threading
import time
from statistics import median
from types import TracebackType

_EVERY_S = 1.0
_TURNS = 20_000
STEADY = 0.1  # a larger difference between two sides is reported


class Pulse:
    """Measures the loop from `__enter__` to `__exit__`, in a thread."""

    def __init__(self) -> None:
        self._beats: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ett-pulse", daemon=True)

    def __enter__(self) -> "Pulse":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def seconds(self) -> float | None:
        """The median; None before the first measurement."""
        return median(self._beats) if self._beats else None

    def _work(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._beats.append(beat_s())


def beat_s() -> float:
    """CPU seconds of one thread for a fixed loop."""
    began = time.thread_time()
    for _ in range(_TURNS):
        pass
    return time.thread_time() - began


def unsteady(before: float | None, after: float | None) -> str | None:
    """A warning if the machine was not equally fast for both sides; else None."""
    if not before or not after or abs(after / before - 1) <= STEADY:
        return None
    change = f"{abs(after / before - 1):.0%} {'slower' if after > before else 'faster'}"
    return (
        f"the machine was {change} in torchett's turn than in stock's (a loop of fixed length took"
        f" {1e3 * before:.2f} ms, then {1e3 * after:.2f}): the seconds cannot be compared"
    )
