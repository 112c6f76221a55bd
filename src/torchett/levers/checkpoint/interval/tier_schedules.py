"""When each tier is due and what it costs: saves to storage, and snapshots that memory keeps."""

from collections.abc import Iterator

from torchett.levers.checkpoint.interval.history import OF_SNAPSHOTS, History
from torchett.levers.checkpoint.interval.interval import DEFAULT_MTBF_S
from torchett.levers.checkpoint.interval.save_cost import SaveCost, seconds_of_node
from torchett.levers.checkpoint.interval.schedule import Schedule
from torchett.levers.checkpoint.interval.two_tiers import SURVIVED
from torchett.levers.checkpoint.store_coordinator import Ranks
from torchett.levers.checkpoint.stored.storage import Storage

_FIRST_SNAPSHOT_S = 10.0
_MOST_OF_TIME = 0.01  # what snapshots may take of training


class TierSchedules:
    """Schedule, costs and history of both tiers; `snapshots` is None where memory keeps none."""

    def __init__(
        self,
        ranks: Ranks,
        near: Storage,
        every: int | str,
        snapshot_every: int | str | None,
        mtbf_s: float | None,
    ) -> None:
        self._ranks, self._mtbf_s = ranks, mtbf_s
        self.history, self._snapshot_history = History(near), History(near, OF_SNAPSHOTS)
        self.saves = self._schedule(every, self.history)
        self.save_cost = SaveCost(self.saves.auto, ranks) if self.saves.auto is not None else None
        self.snapshots: Schedule | None = None
        self.snapshot_cost: SaveCost | None = None
        if snapshot_every is not None:
            limits = {"first_s": _FIRST_SNAPSHOT_S}
            limits |= {"most_blocked": _MOST_OF_TIME, "most_beside": _MOST_OF_TIME}
            self.snapshots = self._schedule(snapshot_every, self._snapshot_history, **limits)
            if self.snapshots.auto is not None:
                self.snapshot_cost = SaveCost(self.snapshots.auto, ranks, "snapshot-cost")

    def _schedule(self, every: int | str, history: History, **limits: float) -> Schedule:
        auto = history.read() if self._ranks.rank == 0 and every == "auto" else None
        return Schedule(every, auto_state=auto, mtbf_s=self._mtbf_s, **limits)

    def memory_keeps(self) -> None:
        """Memory survives most failures: storage is for the rest, and may be saved to more rarely.

        The priors are those of `ett checkpoint plan`.
        """
        mtbf_s = self._mtbf_s or DEFAULT_MTBF_S
        if self.saves.auto is not None:
            self.saves.auto.expect_failures_every(mtbf_s / (1 - SURVIVED))
            self.saves.auto.most_beside = _MOST_OF_TIME
        if self.snapshots is not None and self.snapshots.auto is not None:
            self.snapshots.auto.expect_failures_every(mtbf_s / SURVIVED)

    def passed(self, step: int, *, save: bool, snapshot: bool, saving: bool, copying: bool) -> None:
        """A step is over, which had a save or a snapshot beside it; these are still under way."""
        took_s = self.saves.passed(step)
        if self.snapshots is not None:
            self.snapshots.passed(step)
        if self.save_cost is not None:
            if took_s is not None:
                self.save_cost.step(took_s, save)
            if not saving:
                self.save_cost.over()
        if self.snapshot_cost is not None and not save:
            if took_s is not None:
                self.snapshot_cost.step(took_s, snapshot)
            if not copying:
                self.snapshot_cost.over()

    def snapshot_is_due(self, step: int) -> bool:
        """Whether all ranks are to take a snapshot after this step."""
        return self.snapshots is not None and self.snapshots.due(
            step, lambda key, choose: self._ranks.decide(f"snapshot-{key}", choose)
        )

    def save_begins(self) -> None:
        """A save is a snapshot as well."""
        self.saves.saved()
        if self.snapshots is not None:
            self.snapshots.saved()
        if self.save_cost is not None:
            self.save_cost.save_begins()

    def snapshot_begins(self, whole_after_s: float, cpu_s: float) -> None:
        """The one before was whole on this rank after so long; what that took beside the loop."""
        assert self.snapshots is not None
        if self.snapshots.auto is not None:
            self.snapshots.auto.observe_upload(whole_after_s)
            self.snapshots.auto.observe_beside(seconds_of_node(cpu_s))
        self.snapshots.saved()
        if self.snapshot_cost is not None:
            self.snapshot_cost.save_begins()

    def save_is_durable(self, seconds: float, cpu_s: float) -> None:
        """On rank 0: a save took so long; keep what is known, for the attempt after a kill."""
        for schedule, history in self._both():
            if schedule.auto is not None:
                schedule.auto.observe_exposure(history.elapsed_s())
        if self.saves.auto is not None:
            self.saves.auto.observe_upload(seconds)
            self.saves.auto.observe_beside(seconds_of_node(cpu_s))
        self.write_history(clean=False)

    def count_failure(self, tier: str | None) -> None:
        """The attempt before failed, if it did: for the tiers that this attempt began without.

        A failure from which memory has recovered says nothing against rarer saves to storage.
        """
        if self.snapshots is not None and self.snapshots.auto is not None:
            self.snapshots.auto.observe_failure(0.0, int(self._snapshot_history.has_failed))
        if self.saves.auto is not None and tier not in ("memory", "neighbour"):
            self.saves.auto.observe_failure(0.0, int(self.history.has_failed))

    def write_history(self, *, clean: bool) -> None:
        """Leave what is known of costs and failures to the next attempt."""
        if self._ranks.rank != 0:
            return
        for schedule, history in self._both():
            if schedule.auto is not None:
                history.write(schedule.auto.to_json(), clean=clean)

    def _both(self) -> Iterator[tuple[Schedule, History]]:
        yield self.saves, self.history
        if self.snapshots is not None:
            yield self.snapshots, self._snapshot_history
