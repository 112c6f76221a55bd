"""Errors of background saves, shared by all ranks: a save that fails on one fails on all."""

import logging

from torchett.levers.checkpoint.store_coordinator import Ranks
from torchett.record.api import note

log = logging.getLogger("torchett")

_MOST = 100
_KEPT = 1000  # errors in the store: no rank is so far behind


class RankErrors:
    """The errors of all ranks, in `errors`; the same text from several ranks counts once."""

    def __init__(self, errors: list[str]) -> None:
        self._errors = errors
        self._seen = 0
        self._ranks: Ranks | None = None
        self._warned: set[str] = set()

    def listen(self, ranks: Ranks) -> None:
        """Read what the ranks report, twice a second."""
        self._ranks = ranks
        ranks.every_poll(self._look)

    def report(self, said: str) -> None:
        """Send an error to every rank."""
        assert self._ranks is not None
        number = self._ranks.count("errors", 1)
        self._ranks.tell(f"error/{number}", f"rank {self._ranks.rank}: {said}")

    def warn(self, said: str) -> None:
        """Log a warning on this rank only, once."""
        if said not in self._warned and len(self._warned) < _MOST:
            self._warned.add(said)
            log.warning("torchett: %s; training goes on", said)

    def _look(self) -> None:
        assert self._ranks is not None
        for number in range(self._seen + 1, self._ranks.count("errors") + 1):
            said = self._ranks.told(f"error/{number}")
            if said is None:
                return  # counted, not yet written
            self._seen = number
            if self._ranks.rank == 0 and number > _KEPT:
                self._ranks.forget([f"error/{number - _KEPT}"])
            self._keep(said)

    def _keep(self, said: str) -> None:
        note("checkpoint_error", {"error": said[:300]})
        what = said.partition(": ")[2]
        if what not in {error.partition(": ")[2] for error in self._errors}:
            self._errors.append(said)
            del self._errors[:-_MOST]
            log.warning("torchett: %s; training goes on", said)
