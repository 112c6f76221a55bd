"""A fleet that many requests ask: one thread owns it, answers are shared for a few seconds.

A fleet's database and its DuckDB views belong to one thread. Fifty readers of the same page cost
one query, and the memory of one connection.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torchett.fleet import Fleet

FRESH_S = 5.0
_KEPT = 256  # answers
_SECONDS = 20.0  # that one query may take
_DEAR = 10.0  # times as long as it took to find an answer, it is kept …
_OLDEST_S = 30.0  # … but no longer than this

T = TypeVar("T")
Row = dict[str, Any]


class _Answer(NamedTuple):
    rows: list[Row]
    at_s: float
    worth_s: float  # the longest an expensive answer is kept


class FleetSource:
    """Answers about one fleet, for any thread."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self.clock = clock
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="ett-fleet")
        self._fleet: Fleet | None = None
        self._answers: OrderedDict[tuple[Any, ...], _Answer] = OrderedDict()
        self._lock = threading.Lock()
        self.call(lambda fleet: None)  # a fleet that cannot be opened is said at once

    def call(self, work: Callable[[Fleet], T]) -> T:
        """What `work` returns, called in the thread that owns the fleet."""

        def done() -> T:
            if self._fleet is None:
                self._fleet = Fleet.open(self.folder, make=False)
            return work(self._fleet)

        return self._worker.submit(done).result()

    def rows(self, sql: str, params: Sequence[Any] = (), *, fresh_s: float = FRESH_S) -> list[Row]:
        """The rows that one SELECT finds, at most `fresh_s` old, or ten times as old as it took.

        Readers that ask the same while it is being asked share the answer.
        """
        key = (sql, *params)

        def ask(fleet: Fleet) -> list[Row]:
            known = self._known(key, fresh_s)  # another reader's, found while this one waited
            if known is not None:
                return known
            began = time.monotonic()
            found = list(fleet.query(sql, params, seconds=_SECONDS).to_pylist())
            now = time.monotonic()
            with self._lock:
                self._answers[key] = _Answer(found, now, min(_DEAR * (now - began), _OLDEST_S))
                self._answers.move_to_end(key)
                while len(self._answers) > _KEPT:
                    self._answers.popitem(last=False)
            return found

        known = self._known(key, fresh_s)
        return self.call(ask) if known is None else known

    def _known(self, key: tuple[Any, ...], fresh_s: float) -> list[Row] | None:
        with self._lock:
            known = self._answers.get(key)
        if known is None or time.monotonic() - known.at_s >= max(fresh_s, known.worth_s):
            return None
        return known.rows

    def forget(self) -> None:
        """Forget all answers: something was changed."""
        with self._lock:
            self._answers.clear()

    def close(self) -> None:
        def done() -> None:
            if self._fleet is not None:
                self._fleet.close()
                self._fleet = None

        self._worker.submit(done).result()
        self._worker.shutdown()
