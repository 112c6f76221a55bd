"""Saving, once the ranks are known: what is due after a step, into which memory, by what.

step   decide ─ copy begins ──┐ training goes on
beside it                     ├ whole ─ checksum ─ neighbour's copy      every snapshot
                              └ whole ─ upload ─ durable                 some of them
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from torchett.levers.checkpoint.interval.tier_schedules import TierSchedules
from torchett.levers.checkpoint.memory.job_key import agreed_key
from torchett.levers.checkpoint.memory.keeper_link import Settings
from torchett.levers.checkpoint.memory.kept import SnapshotId
from torchett.levers.checkpoint.memory.left_over import LeftOver
from torchett.levers.checkpoint.memory.tier import MemoryTier
from torchett.levers.checkpoint.preemption.preemption import Preemption
from torchett.levers.checkpoint.save_events import SaveEvents
from torchett.levers.checkpoint.staging.arena import Arena
from torchett.levers.checkpoint.staging.snapshots import Snapshot, Snapshots
from torchett.levers.checkpoint.store_coordinator import Ranks
from torchett.levers.checkpoint.stored.storage import Storage, token
from torchett.levers.checkpoint.upload.saves import Save, SaveThread
from torchett.levers.checkpoint.upload.upload import Job, Target
from torchett.levers.checkpoint.upload.upload_watch import UploadWatch
from torchett.levers.checkpoint.upload.uploaders import ProcessUploader, ThreadUploader, Uploader
from torchett.record.api import blocked

log = logging.getLogger("torchett")

State = Mapping[str, Any]

_SOON_S = 0.5  # how long one that is due at this step waits for it
_WHOLE_S = 60.0  # how long a save that must be made waits for the snapshot before it


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveConfig:
    """What a user has asked for."""

    target: Target
    every: int | str
    snapshot_every: int | str | None
    mtbf_s: float | None
    staging_memory: int | None
    upload: str
    upload_stall_s: float
    neighbour_bytes_per_s: float


class SaveSession:
    """The ranks, their schedules and saves, the tier in memory, and the uploader."""

    def __init__(
        self, ranks: Ranks, config: SaveConfig, near: Storage, left: LeftOver, events: SaveEvents
    ) -> None:
        self.ranks, self.config, self._near = ranks, config, near
        self._left, self._events = left, events
        self.pid = os.getpid()
        self.watch = UploadWatch(ranks, config.upload_stall_s)
        self.schedules = TierSchedules(
            ranks, near, config.every, config.snapshot_every, config.mtbf_s
        )
        self.schedule = self.schedules.saves
        events.join(ranks, self.schedules, self.watch)
        self.saves = SaveThread(events.on_durable, events.on_done, self.watch)
        self.uploader = self._uploader()
        self._thread: ThreadUploader | None = None
        self.preemption = Preemption(ranks)
        self.snapshots = Snapshots(config.staging_memory)
        self.tier: MemoryTier | None = None
        self.restored_token: str | None = None
        self._uploading: int | None = None  # buffer of the last save
        self._decisions = self._uploads = 0
        self._compared = ""  # the plan of the last save
        self._divided, self._divisions = "", 0  # the last wish for another division, and how many
        self._beside_save = self._beside_snapshot = False  # the step under way

    def _uploader(self) -> Uploader:
        import torch

        # Beside a GPU's queue a thread that writes costs steps: 0.7 s a save of 8 GiB on an H200.
        apart = self.ranks.size > 1 or torch.cuda.is_available()
        upload, ranks, events = self.config.upload, self.ranks, self._events
        if upload == "process" or (upload == "auto" and apart):
            return ProcessUploader(
                events.on_flushed,
                events.on_death,
                self.watch,
                ranks.address,
                ranks.rank,
                ranks.size,
            )
        return ThreadUploader(events.on_flushed, self.watch, ranks.group)

    # The first step --------------------------------------------------------------------------

    def prepare(self, state: State) -> None:
        """Make the memory for copies, the keeper and the uploader ready."""
        self.uploader.begin()
        outlives = self.schedules.snapshots is not None
        plan = self.snapshots.prepare(
            state, self.ranks, outlives=outlives, held=self._left.held_bytes()
        )
        if plan.outlives:
            told = self.ranks.gather(self._left.secrets())
            secrets = [one for all_of_rank in told for one in all_of_rank]
            key = agreed_key(self._near, secrets) if self.ranks.rank == 0 else None
            key = self.ranks.gather(key)[0]
            assert key is not None
            settings = Settings(
                where=self._near.root,
                job=key.job,
                secret=key.secret,
                copy_bytes=plan.copy_bytes,
                bytes_per_s=self.config.neighbour_bytes_per_s,
            )
            self.tier = MemoryTier(self.ranks, plan, settings)
            self.schedules.memory_keeps()
        self._left.end_but(None if self.tier is None else self.tier.job)
        self.snapshots.make_ready(self._adopt)

    def _adopt(self) -> Sequence[Arena]:
        """From the background: have a keeper, and its memory of the attempt before, if any."""
        return [] if self.tier is None else self.tier.begin(self.restored_token)

    # After each step -------------------------------------------------------------------------

    def passed(self, step: int) -> None:
        """A step is over."""
        self.schedules.passed(
            step,
            save=self._beside_save,
            snapshot=self._beside_snapshot,
            saving=self.saves.busy,
            copying=self.tier is not None and not self.tier.is_settled_here,
        )

    def goes_on(self) -> None:
        """The next step is under way."""
        self._beside_save = self.saves.busy
        self._beside_snapshot = self.tier is not None and not self.tier.is_settled_here

    def save_if_due(self, step: int, state: State, metric: float | None) -> None:
        """Save, or take a snapshot that only memory keeps, if all ranks are to do so now."""
        if self.schedule.due(step, self.ranks.decide):
            self.save(step, state, metric)
        elif self.schedules.snapshot_is_due(step):
            self.keep(step, state)

    def save(
        self,
        step: int,
        state: State,
        metric: float | None,
        *,
        must: bool = False,
        account: str | None = "checkpoint_blocked",
    ) -> None:
        """Begin to save the state to storage; `must` waits where it would come too early."""
        began, save_cost = time.monotonic(), self.schedules.save_cost
        self._decisions += 1
        if save_cost is not None and not self.saves.busy:
            save_cost.over()
            save_cost.settle()
        said = self.ranks.decide(f"save/{self._decisions}", lambda: self._choose(must))
        if said == "later":
            self.schedule.defer(step)
            return
        with blocked(account) if account else nullcontext():
            mark, generation, by, stamp, before, division = said.split()
            self.saves.wait()
            self.snapshots.wait()
            self._events.saved_step = step
            self.schedules.save_begins()
            self._divide(state, int(division))
            whole = before == "whole"
            index, snapshot = self._take(step, state, stamp, whole, self._compares)
            self._upload(step, metric, mark, int(generation), by == "thread", index, snapshot)
        if save_cost is not None:  # a thread costs more than the process that comes after it
            called_s = time.monotonic() - began
            save_cost.called(self._decisions, called_s, snapshot.copy, early=by == "thread")

    def keep(self, step: int, state: State) -> None:
        """Begin to copy the state into the tier in memory."""
        assert self.schedules.snapshots is not None
        save_cost = self.schedules.snapshot_cost
        began = time.monotonic()
        self._decisions += 1
        if save_cost is not None and self.tier is not None and self.tier.is_settled_here:
            save_cost.over()
            save_cost.settle()
        said = self.ranks.decide(f"save/{self._decisions}", self._choose_to_keep)
        if said == "later":
            self.schedules.snapshots.defer(step)
            return
        assert self.tier is not None
        with blocked("checkpoint_blocked"):
            stamp, before, division = said.split()
            self.snapshots.wait()
            self._divide(state, int(division))
            self.schedules.snapshot_begins(self.tier.seconds, self.tier.cpu_s)
            _, snapshot = self._take(step, state, stamp, before == "whole")
        if save_cost is not None:
            called_s = time.monotonic() - began
            early = self.saves.busy  # what it costs cannot be told from what the save costs
            save_cost.called(self._decisions, called_s, snapshot.copy, early=early)

    # On rank 0 -------------------------------------------------------------------------------

    def _choose(self, must: bool) -> str:
        """Whether to save now, into which fresh place, by what, and after which snapshot."""
        unready = self.schedule.steps is None and not self.snapshots.ready
        if (self.saves.busy or unready) and not must:
            return "later"
        soon_s = _SOON_S if self.schedule.steps is not None else 0.0
        before = self._before(_WHOLE_S if must else soon_s)
        if before is None:
            if not must:
                return "later"
            before = "failed"  # it is late by a minute
        generation = self.ranks.count("generation")
        return f"{token()} {generation} {self._by_whom()} {_stamp()} {before} {self._division()}"

    def _by_whom(self) -> str:
        """A thread until the upload process is ready.

        Only one process at a time flushes to a second tier: it protects what it has in hand.
        """
        by_either = self.config.upload == "auto" and self.config.target.remote is None
        return "thread" if by_either and not self.uploader.is_ready() else "usual"

    def _choose_to_keep(self) -> str:
        if self.tier is None or not self.snapshots.ready or not self.tier.has_room(self._busy()):
            return "later"
        before = self._before(0.0)
        return "later" if before is None else f"{_stamp()} {before} {self._division()}"

    def _division(self) -> int:
        """The number of the division to keep to: another one if any rank has asked for it."""
        wanted = self.snapshots.wanted()
        if wanted != self._divided:
            self._divided = wanted
            self._divisions += 1  # never a number that was used, even if the last one failed
        return self._divisions

    def _before(self, patience_s: float) -> str | None:
        """Whether the snapshot before is whole on all ranks; None if it is not settled yet."""
        if self.tier is None:
            return "whole"
        self.tier.wait(patience_s)
        if not self.tier.is_settled():
            return None
        return "whole" if self.tier.is_whole() else "failed"

    # On every rank ---------------------------------------------------------------------------

    def _busy(self) -> int | None:
        """The buffer that an upload reads."""
        return self._uploading if self.saves.busy else None

    def _divide(self, state: State, number: int) -> None:
        if number != self.snapshots.division:
            self.snapshots.divide(state, number)

    def _compares(self, plan_id: str) -> bool:
        """Whether the next save compares what ranks hold alike.

        A checksum of all bytes is not cheap: for each new plan, then ever more rarely.
        """
        often = (self._uploads + 1) & self._uploads == 0
        return self.ranks.size > 1 and (often or plan_id != self._compared)

    def _take(
        self,
        step: int,
        state: State,
        stamp: str,
        before_is_whole: bool,
        compares: Callable[[str], bool] = lambda plan_id: False,
    ) -> tuple[int, Snapshot]:
        """Begin to copy into the next buffer; other ranks count on this one."""
        if self.tier is None:
            return 0, self.snapshots.take(state, 0, compares)
        index = self.tier.next_buffer(before_is_whole, self._busy())
        if index is None:
            self.saves.wait()
            index = self.tier.next_buffer(before_is_whole, None)
        assert index is not None
        self.tier.copies_into(index)
        snapshot = self.snapshots.take(state, index, compares)
        ranks = self.ranks
        id = SnapshotId(token=stamp, step=step, rank=ranks.rank, world_size=ranks.size)
        self.tier.taken(index, id, snapshot)
        return index, snapshot

    def _upload(
        self,
        step: int,
        metric: float | None,
        mark: str,
        generation: int,
        early: bool,
        index: int,
        taken: Snapshot,
    ) -> None:
        """Hand the copy to the background."""
        compare = taken.is_summed and self._compares(taken.plan_id)
        self._uploads += 1
        self._compared = taken.plan_id
        job = Job(
            step=step,
            token=mark,
            generation=generation,
            rank=self.ranks.rank,
            world_size=self.ranks.size,
            target=self.config.target,
            plan_id=taken.plan_id,
            plan=taken.plan,
            slots=taken.slots,
            blobs=taken.blobs,
            metric=metric,
            per_rank=taken.per_rank,
            compare=compare,
            poison=f"staging step {step}: {taken.problem}" if taken.problem else None,
        )
        by_thread = taken.is_held or early
        self._uploading = index
        self.saves.begin(
            Save(
                job=job,
                arena=taken.arena,
                tensors=taken.tensors,
                copy=taken.copy,
                uploader=self._by_thread() if by_thread else self.uploader,
                keys=self.ranks.decided(),
                is_held=taken.is_held,
            )
        )

    def _by_thread(self) -> ThreadUploader:
        """The uploader while there is no process yet, or for a state that it could not map."""
        if self._thread is None:
            self._thread = ThreadUploader(self._events.on_flushed, self.watch, self.ranks.group)
        return self._thread

    def save_newest(self, within_s: float) -> int | None:
        """Upload the newest snapshot that all ranks have in memory; its step, if there is one.

        From a thread of each rank, while no loop takes a step.
        """
        if self.tier is None:
            return None
        said = self.ranks.decide("newest", lambda: self._choose_newest(within_s))
        if not said:
            return None
        stamp, mark, generation, by = said.split()
        taken = self.tier.taken_as(stamp)
        if taken is None or taken.id.step <= self._events.saved_step:
            return None
        early = by == "thread"
        step, index = taken.id.step, taken.index
        self._upload(step, None, mark, int(generation), early, index, taken.snapshot)
        self._events.saved_step = taken.id.step
        return taken.id.step

    def _choose_newest(self, within_s: float) -> str:
        assert self.tier is not None
        self.saves.wait(within_s)
        stamp = None if self.saves.busy else self.tier.newest()
        generation = self.ranks.count("generation")
        return "" if stamp is None else f"{stamp} {token()} {generation} {self._by_whom()}"

    # At the end ------------------------------------------------------------------------------

    def flushed_by(self, timeout_s: float) -> None:
        """Wait until the second tier has everything, or the time is over."""
        until = time.monotonic() + timeout_s
        for uploader in filter(None, (self._thread, self.uploader)):
            uploader.flushed_by(max(0.0, until - time.monotonic()))

    def close(self, *, ended_well: bool) -> None:
        """End the background, and the keeper unless the next attempt may need it."""
        self.preemption.close()
        if self.tier is not None:
            self.tier.close(ended_well=ended_well)
        self.ranks.close()
        self.uploader.close()


def _stamp() -> str:
    """The token of a snapshot: of two of the same step, the later one's is greater."""
    return f"{time.time_ns():016x}-{token()}"
