"""Trouble in the background, told to every rank: a save that failed anywhere has failed for all."""

import logging

from torchett.checkpoint.ranks import Ranks
from torchett.record.api import note

log = logging.getLogger("torchett")

_MOST = 100


class Trouble:
    """What went wrong on any rank, as `errors`; the same words of several ranks count once."""

    def __init__(self, errors: list[str]) -> None:
        self._errors = errors
        self._seen = 0
        self._ranks: Ranks | None = None
        self._warned: set[str] = set()

    def listen(self, ranks: Ranks) -> None:
        """Hear what the ranks report, twice a second."""
        self._ranks = ranks
        ranks.every_poll(self._look)

    def report(self, said: str) -> None:
        """Let every rank know."""
        assert self._ranks is not None
        number = self._ranks.count("errors", 1)
        self._ranks.tell(f"error/{number}", f"rank {self._ranks.rank}: {said}")

    def warn(self, said: str) -> None:
        """Say it on this rank alone, once."""
        if said not in self._warned and len(self._warned) < _MOST:
            self._warned.add(said)
            log.warning("torchett: %s; training goes on", said)

    def _look(self) -> None:
        assert self._ranks is not None
        for number in range(self._seen + 1, self._ranks.count("errors") + 1):
            said = self._ranks.told(f"error/{number}")
            if said is None:
                return  # counted, not yet told
            self._seen = number
            self._hear(said)

    def _hear(self, said: str) -> None:
        note("checkpoint_error", {"error": said[:300]})
        what = said.partition(": ")[2]
        if what not in {error.partition(": ")[2] for error in self._errors}:
            self._errors.append(said)
            del self._errors[:-_MOST]
            log.warning("torchett: %s; training goes on", said)
