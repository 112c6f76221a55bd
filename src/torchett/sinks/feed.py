"""Feeding a sink: a finished run at once, a running one as it goes."""

from collections.abc import Callable
from typing import Protocol

from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.runs.reader import RunReader
from torchett.sinks.scalars import Point, now, points

_OVER = 2  # looks at a job without a running attempt, until it counts as over


class Sink(Protocol):
    """Where scalars go; made for one job."""

    def log(self, point: Point) -> None: ...

    def close(self, ledger: Ledger) -> None:
        """Write the final figures, and finish."""


def write(sink: Sink, ledger: Ledger, history: History) -> None:
    """All of a run, at points spread over its time."""
    for point in points(ledger, history):
        sink.log(point)
    sink.close(ledger)


def follow(sink: Sink, reader: RunReader, wait: Callable[[], None]) -> None:
    """A point at every look, until the job is over; between two attempts it is waited for."""
    looks = 0
    try:
        while looks < _OVER:
            ledger = reader.poll().ledger()
            sink.log(now(ledger))
            looks = 0 if ledger.window.live else looks + 1
            if looks < _OVER:
                wait()
    except KeyboardInterrupt:
        pass  # what was seen so far is finished below
    sink.close(reader.ledger())
