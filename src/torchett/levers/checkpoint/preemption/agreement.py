"""Ranks agree on the step after which all of them save, through the store and without a collective.

    rank 0   ──── 41 ──── 42 ────── 43 ●save        SIGTERM in step 42: answers "passed 41"
    rank 1   ──── 41 ──── 42 ────── 43 ●save        learns of it in step 43: answers "passed 42"
                                                    the step is the highest answer + 1

A rank's answer comes from a thread of its own, so one that waits in a collective still answers, and
once it has answered its loop passes no further boundary before the step is known: nobody can be
beyond it, and everybody can reach it. If nothing is up, a boundary costs no word to the store.
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from torchett.record.clock import now_ns
from torchett.record.process.joined_threads import begin_beside

log = logging.getLogger("torchett")

_POLL_S = 0.5
_ASK_S = 0.02
_RANKS_PER_S = 2000  # a store is asked by so many ranks a second, not more
_NONE_YET = -1


class Store(Protocol):
    """What is used of torch's store."""

    def set(self, key: str, value: str, /) -> None: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: Any, /) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...


class Agreement:
    """One rank's side; `budget_s` is how long it waits for a rank that does not answer."""

    def __init__(self, store: Store, rank: int, world_size: int, *, budget_s: float) -> None:
        self._store, self._rank, self._world = _own(store), rank, world_size
        self._budget_ns = int(budget_s * 1e9)
        self._lock = threading.Lock()
        self._round = 0
        self._passed = _NONE_YET  # the last boundary that the loop has passed
        self._answer: int | None = None
        self._told_ns = 0
        self._step: int | None = None
        self._off = False
        self._heard = threading.Event()
        self._closed = False
        self._poll_s = max(_POLL_S, world_size / _RANKS_PER_S)
        if world_size > 1:
            begin_beside(self._listen, name="ett-agree", wake=self.close)

    def tell(self) -> None:
        """This rank has been told that it will end; from any thread."""
        self._heard.set()

    def at_boundary(self, step: int, received: bool) -> int | None:
        """The step after which all ranks save; None if nobody was told to end.

        To be called after each step, before the next. A rank that could not answer in time may be
        given a step that it has passed already: it has missed it.
        """
        if self._world == 1:
            return step if received else None
        if self._off:
            return None
        if self._step is not None:
            if step <= self._step:
                return self._step
            self._begin_anew()
        try:
            if received:
                self._take_part()
            with self._lock:
                if self._answer is None:
                    self._passed = step
                    return None
            self._step = self._wait()
        except Exception as error:
            self._give_up(error)
            return None
        if self._step == _NONE_YET:  # nobody had passed any boundary: this is everybody's first
            self._step = step
        return self._step

    def close(self) -> None:
        self._closed = True
        self._heard.set()

    # Behind it -------------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        return f"ett/preempt/{self._round}/{name}"

    def _begin_anew(self) -> None:
        """The ranks have saved and go on: there may be another notice."""
        with self._lock:
            self._passed = self._step if self._step is not None else _NONE_YET
            self._step = self._answer = None
            self._round += 1
            self._heard.clear()

    def _listen(self) -> None:
        """Hear of a notice, here or on another rank, and answer at once."""
        while not self._closed and not self._off:
            heard = self._heard.wait(self._poll_s)
            try:
                if self._answer is not None:
                    time.sleep(_POLL_S)
                elif not self._closed and (heard or self._store.check([self._key("told")])):
                    self._take_part()
            except Exception as error:
                self._give_up(error)

    def _take_part(self) -> None:
        with self._lock:
            if self._answer is not None:
                return
            self._answer, self._told_ns = self._passed, now_ns()
            told, mine, count = map(self._key, ("told", f"rank/{self._rank}", "answers"))
        self._store.set(told, "1")
        self._store.set(mine, str(self._answer))
        if self._store.add(count, 1) == self._world:
            self._decide(range(self._world))

    def _wait(self) -> int:
        """The step, once it is known; made up from the answers there are when time is up."""
        key = self._key("step")
        while not self._store.check([key]):
            if now_ns() - self._told_ns > self._budget_ns:
                answered = [
                    rank
                    for rank in range(self._world)
                    if self._store.check([self._key(f"rank/{rank}")])
                ]
                silent = sorted(set(range(self._world)) - set(answered))
                log.warning("torchett: saving without word from ranks %s", silent)
                self._decide(answered)
                break
            time.sleep(_ASK_S)
        return int(self._store.get(key))

    def _decide(self, ranks: Sequence[int]) -> None:
        """Write down the step, unless another rank was first."""
        passed = max(int(self._store.get(self._key(f"rank/{rank}"))) for rank in ranks)
        step = _NONE_YET if passed == _NONE_YET else passed + 1
        self._store.compare_set(self._key("step"), "", str(step))

    def _give_up(self, error: Exception) -> None:
        if not self._off and not self._closed:
            self._off = True
            log.warning("torchett: ranks cannot agree on a step to save: %s", error)


def _own(store: Any) -> Store:
    """A connection of our own where the store can be cloned: a wait of others does not hold us."""
    try:
        found: Store = store.clone()
    except Exception:
        found = store
    return found
