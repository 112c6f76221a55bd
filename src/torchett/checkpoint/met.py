"""What a checkpointer knows once the ranks have met: with whom it saves, when, at what cost."""

import os
import time
from collections.abc import Callable

from torchett.checkpoint.history import History
from torchett.checkpoint.preemption import Preemption
from torchett.checkpoint.ranks import Ranks
from torchett.checkpoint.saves import Saves
from torchett.checkpoint.schedule import Schedule
from torchett.checkpoint.toll import Toll
from torchett.checkpoint.uploaders import ThreadUploader, Uploader


class Met:
    """The ranks, their schedule and saves, and whoever uploads."""

    def __init__(
        self,
        ranks: Ranks,
        schedule: Schedule,
        saves: Saves,
        uploader: Uploader,
        history: History,
    ) -> None:
        self.ranks, self.schedule, self.saves = ranks, schedule, saves
        self.uploader, self.history = uploader, history
        self.preemption = Preemption(ranks)
        self.pid = os.getpid()
        self.toll = Toll(schedule.auto, ranks) if schedule.auto is not None else None
        self._beside_save = False  # the step under way
        self._thread: ThreadUploader | None = None

    def by_thread(self, on_flushed: Callable[[int, str | None], None]) -> ThreadUploader:
        """The uploader while there is no process yet, or for a state that it could not map."""
        if self._thread is None:
            self._thread = ThreadUploader(on_flushed, self.ranks.group)
        return self._thread

    def flushed_by(self, timeout_s: float) -> None:
        """Wait until the second tier has everything, or the time is over."""
        until = time.monotonic() + timeout_s
        for uploader in filter(None, (self._thread, self.uploader)):
            uploader.flushed_by(max(0.0, until - time.monotonic()))

    def passed(self, step: int) -> None:
        """A step is over."""
        took_s = self.schedule.passed(step)
        if self.toll is not None:
            if took_s is not None:
                self.toll.step(took_s, self._beside_save)
            if not self.saves.busy:
                self.toll.over()

    def goes_on(self) -> None:
        """The next step is under way."""
        self._beside_save = self.saves.busy
