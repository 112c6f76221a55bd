"""Writes a run to a sink: a finished run at once, a running one point by point."""

from collections.abc import Callable
from typing import Protocol

from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.runs.reader import RunReader
from torchett.sinks.scalars import Point, now, points

_OVER = 2  # a job has ended if this many polls find no running attempt


class Sink(Protocol):
    """Receives the scalars of one job."""

    def log(self, point: Point) -> None: ...

    def close(self, ledger: Ledger) -> None:
        """Write the final figures and close the output."""


def write(sink: Sink, ledger: Ledger, history: History) -> None:
    """Write a whole run, at points spread over its time."""
    for point in points(ledger, history):
        sink.log(point)
    sink.close(ledger)


def follow(sink: Sink, reader: RunReader, wait: Callable[[], None]) -> None:
    """Write a point at every poll until the job has ended; continues between two attempts."""
    polls = 0
    try:
        while polls < _OVER:
            ledger = reader.poll().ledger()
            sink.log(now(ledger))
            polls = 0 if ledger.window.live else polls + 1
            if polls < _OVER:
                wait()
    except KeyboardInterrupt:
        pass  # the final figures are still written
    sink.close(reader.ledger())
