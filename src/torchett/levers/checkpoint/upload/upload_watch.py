"""Uploads that end: whether one moves, whether it is tried again, whether saves become durable.

    rank 0   arrives ──── writes ──────── ✗ 503 ─ 1 s ─ writes ──┤ durable
    rank 1          … arrives ── writes ──┤ waits ─ 1 s ─ writes ─┤
             no limit ──┤ no byte on any rank for `limit_s`: given up

The clock runs only once every rank has arrived: ranks may come at any time after each other.
"""

import logging
import threading
import time
from typing import Any

from torchett.levers.checkpoint.store_coordinator import Ranks
from torchett.levers.checkpoint.stored.storage import token
from torchett.record.api import note

log = logging.getLogger("torchett")

_PAUSES_S = (1.0, 4.0, 15.0)  # before each further attempt
_ASK_S = 0.2


class UploadWatch:
    """Watches one upload after the other on this rank; the ranks share what they see."""

    def __init__(self, ranks: Ranks, limit_s: float) -> None:
        self._ranks, self.limit_s = ranks, limit_s
        self._number = self._attempt = 0
        self._all_here = False
        self._keys: list[str] = []  # of the saves before, which ranks may still read
        self._hurry = threading.Event()
        self._failed = 0
        self._durable: int | None = None
        self._durable_s = time.monotonic()

    def count(self, key: str, add: int) -> int:
        """A counter that all ranks share."""
        return self._ranks.count(key, add)

    # Whether it moves ------------------------------------------------------------------------

    def begins(self, step: int) -> None:
        """An attempt to upload begins here."""
        self._step = step
        self._moved_s = self._begun_s = time.monotonic()
        self._asked_s = 0.0
        self._passed = self._told = self._shared = -1
        self._all_here = self._ranks.size == 1
        self._warned = False
        if not self._all_here:
            self._ranks.count(self._key("here"), 1)

    def gives_up(self, passed: int) -> str | None:
        """Why to give the upload up, after so many bytes; to be asked about once a second."""
        now = time.monotonic()
        if passed != self._passed:
            self._moved_s = now
        if self._ranks.size > 1 and now - self._asked_s > min(10.0, self.limit_s / 10):
            self._asked_s = now
            self._share(passed, now)
        self._passed = passed
        if not self._all_here:
            self._moved_s = now
            self._warn(now - self._begun_s, "waits for other ranks, for %.0f s now")
            return None
        still_s = now - self._moved_s
        if still_s > self.limit_s:
            return f"nothing was written for {still_s:.0f} s"
        self._warn(still_s, "has written nothing for %.0f s")
        return None

    def _share(self, passed: int, now: float) -> None:
        try:
            moved = self._ranks.count(self._key("moved"), int(passed != self._told))
            self._told = passed
            self._all_here |= self._ranks.count(self._key("here")) >= self._ranks.size
        except Exception as error:  # the store has gone with rank 0: the job is ending
            log.debug("torchett: other ranks are not heard: %s", error)
            return
        if moved != self._shared:
            self._shared, self._moved_s = moved, now

    def _warn(self, seconds: float, what: str) -> None:
        if self._warned or seconds < self.limit_s / 5:
            return
        self._warned = True
        log.warning(
            f"torchett: the upload of step %d {what}; training goes on", self._step, seconds
        )
        note("checkpoint_upload_stands_still", {"step": self._step, "seconds": seconds})

    # Whether it is tried again ---------------------------------------------------------------

    def hurry(self) -> None:
        """Someone waits for the upload: no more pauses, and no more attempts after this one."""
        self._hurry.set()

    def another(self, outcome: Any) -> tuple[str, int] | None:
        """The place's token and the group's generation of the next attempt; None if there is none.

        Rank 0 decides, after every attempt; ranks that were told of a success need not ask.
        """
        if not outcome.group_is_sound:
            self._ranks.count("generation", 1)
        key, said = self._key("again"), "over"
        if self._ranks.rank == 0:
            left = self._attempt < len(_PAUSES_S) and not self._hurry.is_set()
            if outcome.error is not None and outcome.can_retry and left:
                said = f"{token()} {self._ranks.count('generation')}"
            if self._ranks.size > 1:
                self._ranks.tell(key, said)
        elif outcome.error is not None:
            said = self._wait_for(key)
        if said == "over":
            self._forget()
            self._number, self._attempt = self._number + 1, 0
            self._hurry.clear()
            return None
        place, _, generation = said.partition(" ")
        log.info("torchett: step %d is uploaded again after: %s", outcome.step, outcome.error)
        self._hurry.wait(_PAUSES_S[self._attempt])
        self._attempt += 1
        return place, int(generation)

    def _forget(self) -> None:
        """Delete the keys of the saves before this one, if every rank has come to this one."""
        if self._ranks.rank != 0 or self._ranks.size == 1:
            return
        if self._ranks.count(self._key("here")) >= self._ranks.size:
            self._ranks.forget(self._keys)
            self._keys = []
        for attempt in range(self._attempt + 1):
            name = f"upload/{self._number}/{attempt}"
            self._keys += [f"{name}/here", f"{name}/moved", f"{name}/again"]

    def _wait_for(self, key: str) -> str:
        while True:
            said = self._ranks.told(key)  # raises when rank 0 is gone
            if said is not None:
                return said
            time.sleep(_ASK_S)

    def _key(self, name: str) -> str:
        return f"upload/{self._number}/{self._attempt}/{name}"

    # Whether saves become durable ------------------------------------------------------------

    def ended(self, step: int, error: str | None) -> None:
        """A save is over: say it when several in a row have failed, and when one succeeds again."""
        age_s = time.monotonic() - self._durable_s
        if error is None:
            if self._failed > 1:
                log.warning("torchett: checkpoints are durable again: step %d", step)
                note("checkpoints_durable_again", {"step": step, "failed": self._failed})
            self._failed, self._durable, self._durable_s = 0, step, time.monotonic()
            return
        self._failed += 1
        if self._failed > 1 and self._failed & (self._failed - 1) == 0:  # 2, 4, 8, …
            newest = "none" if self._durable is None else f"step {self._durable}"
            log.warning(
                "torchett: %d saves in a row have failed; the newest durable checkpoint of this "
                "attempt: %s, %.0f s ago; the last error: %s",
                self._failed, newest, age_s, error,
            )  # fmt: skip
            fact = {"failed": self._failed, "durable": self._durable, "seconds": age_s}
            note("checkpoints_not_durable", {**fact, "error": error[:300]})
