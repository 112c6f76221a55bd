"""The machine's pulse while a side runs: what the same little work takes, once a second.

    stock      · · · · · · · ·     0.70 ms
    torchett   · · ˙ ˙ ˙ · ˙ ˙     0.91 ms     it is slower now: others use the machine as well

Seconds of two sides can be compared as far as the machine was the same to both. What a job does is
in it, too, where it leaves no core free; that is the same work on both sides.
"""

import threading
import time
from statistics import median
from types import TracebackType

_EVERY_S = 1.0
_TURNS = 20_000
STEADY = 0.1  # sides further apart are told apart


class Pulse:
    """Takes it from when it is entered to when it is left."""

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
        """The median; None before the first."""
        return median(self._beats) if self._beats else None

    def _work(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._beats.append(beat_s())


def beat_s() -> float:
    """Seconds of a core for a little work that is always the same."""
    began = time.thread_time()
    for _ in range(_TURNS):
        pass
    return time.thread_time() - began


def unsteady(before: float | None, after: float | None) -> str | None:
    """What to say where the machine was not the same to both sides; None where it was."""
    if not before or not after or abs(after / before - 1) <= STEADY:
        return None
    change = f"{abs(after / before - 1):.0%} {'slower' if after > before else 'faster'}"
    return (
        f"the machine was {change} in torchett's turn than in stock's (a loop of always the same"
        f" length took {1e3 * before:.2f} ms, then {1e3 * after:.2f}): seconds are not the same"
    )
