"""What the background says of saves, and what follows: durable steps, errors, the interval."""

import logging

from torchett.levers.checkpoint.interval.tier_schedules import TierSchedules
from torchett.levers.checkpoint.rank_errors import RankErrors
from torchett.levers.checkpoint.store_coordinator import Ranks
from torchett.levers.checkpoint.upload.saves import Save
from torchett.levers.checkpoint.upload.upload import UploadResult
from torchett.levers.checkpoint.upload.upload_watch import UploadWatch
from torchett.record.api import checkpoint_durable, note

log = logging.getLogger("torchett")


class SaveEvents:
    """Called for saves on this rank; `durable` and `errors` are what the user sees."""

    def __init__(self) -> None:
        self.durable: dict[str, int] = {}  # tier → the last step that is safe there
        self.errors: list[str] = []  # of the background, on any rank
        self.rank_errors = RankErrors(self.errors)
        self.saved_step = -1
        self.is_closed = False
        self._unread: list[str] = []  # keys of saves that failed: some rank may still read them
        self._ranks: Ranks | None = None

    def join(self, ranks: Ranks, schedules: TierSchedules, watch: UploadWatch) -> None:
        """The ranks have met."""
        self._ranks, self._schedules, self._watch = ranks, schedules, watch
        self.rank_errors.listen(ranks)

    def on_durable(self, save: Save) -> None:
        """On rank 0, the moment it is durable."""
        checkpoint_durable(save.job.step)
        self.durable["local"] = save.job.step

    def on_done(self, save: Save, outcome: UploadResult) -> None:
        assert self._ranks is not None
        first = self._ranks.rank == 0
        if first:
            self._watch.ended(outcome.step, outcome.error)
        if outcome.warning is not None:
            self.rank_errors.warn(outcome.warning)
        self._unread += save.keys
        if outcome.error is None:
            self._ranks.forget(self._unread)
            self._unread = []
            self.durable["local"] = outcome.step
            if first:
                self._schedules.save_is_durable(outcome.seconds, outcome.cpu_s)
            return
        self.saved_step = min(self.saved_step, outcome.step - 1)
        if first or not outcome.group_is_sound:  # else all ranks have the same words
            said = f"the checkpoint of step {outcome.step} was not saved: {outcome.error}"
            self.rank_errors.report(said)

    def on_flushed(self, step: int, error: str | None) -> None:
        if error is None:
            self.durable["remote"] = step
            note("checkpoint_flushed", {"step": step})
        else:
            self.rank_errors.report(f"the checkpoint of step {step} was not flushed: {error}")

    def on_death(self, said: str) -> None:
        if self._ranks is None or self.is_closed:
            return
        try:
            self._ranks.count("generation", 1)
            self.rank_errors.report(f"{said} and was begun anew")
        except Exception as error:  # the store has gone with rank 0: the job is ending
            log.debug("torchett: %s, and nobody could be told: %s", said, error)
