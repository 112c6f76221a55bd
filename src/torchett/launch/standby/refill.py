"""When used standbys are replaced: at a time that does not slow down a start-up.

Their imports take some ten seconds of a core each. With cores to spare they are replaced at once,
else when the ranks train: it slows a step hardly, and a start-up a lot.
"""

import os
import time

from torchett.launch.elastic.journal import Journal
from torchett.launch.standby.pool import StandbyPool

_LATEST_S = 60.0  # for ranks that keep no record: whether they train is unknown
_LOOK_S = 1.0


class Refill:
    """Fills a pool at the right time after each start of the ranks."""

    def __init__(self, pool: StandbyPool, journal: Journal) -> None:
        self._pool, self._journal = pool, journal
        self._since_s: float | None = None
        self._looked_s = 0.0

    def started(self, ranks: int) -> None:
        if len(os.sched_getaffinity(0)) >= 4 * ranks:
            self._pool.fill(spare=True)
        else:
            self._since_s = self._looked_s = time.monotonic()

    def look(self, pids: dict[int, int]) -> None:
        """Called often; `pids` of the ranks by their numbers."""
        now = time.monotonic()
        if self._since_s is None or now - self._looked_s < _LOOK_S:
            return
        self._looked_s = now
        if now - self._since_s >= _LATEST_S or self._journal.training(pids):
            self._since_s = None
            self._pool.fill(spare=True)
