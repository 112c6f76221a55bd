"""The checkpointer: what a training loop calls.

    ckpt = ett.Checkpointer("checkpoints/run-7", every="auto", keep=3)
    first = ckpt.restore(state)               # 0 if there is no checkpoint yet
    for step, batch in enumerate(loader, start=first):
        …
        optimizer.step()
        ckpt.step(step, state)                # returns at once; saves when it is due
    ckpt.close()                              # the last step's state is safe

`state` is what DCP takes: {"model": model, "optimizer": optimizer, "loader": loader, …}.
"""

import atexit
import logging
import math
import os
import threading
import time
from collections.abc import Collection, Mapping, MutableMapping
from contextlib import nullcontext
from typing import Any, Literal

from torchett.checkpoint import fence, orphans, preemption
from torchett.checkpoint.catalog import PINNED, entries
from torchett.checkpoint.errors import CheckpointError
from torchett.checkpoint.history import History
from torchett.checkpoint.met import Met
from torchett.checkpoint.prefetch import Prefetch
from torchett.checkpoint.ranks import Ranks, meet
from torchett.checkpoint.retention import Keep
from torchett.checkpoint.saves import Copy, Save, Saves
from torchett.checkpoint.schedule import Schedule
from torchett.checkpoint.snapshots import Snapshots
from torchett.checkpoint.standstill import all_stand_at, unlike_its_last_step
from torchett.checkpoint.storage import named_storage, token
from torchett.checkpoint.trouble import Trouble
from torchett.checkpoint.upload import Job, Outcome, Target
from torchett.checkpoint.uploaders import ProcessUploader, ThreadUploader, Uploader
from torchett.record.api import blocked, checkpoint_durable, note
from torchett.record.api import stage as recorded_stage

log = logging.getLogger("torchett")

State = Mapping[str, Any]
_EXIT_S = 120.0  # how long a process on its way out waits for an upload


class Checkpointer:
    """Saves and restores the state of a training job.

    `every`           steps (500), seconds ("600s", "10m"), or "auto": the interval that wastes
                      least, by what saves and failures are seen to cost
    `keep`            how many of the last ones, or a `Keep` (every n-th, the best, …)
    `remote`          a second tier; checkpoints are flushed to it in the background
    `staging_memory`  bytes a rank may hold for a copy of its state; None: as many as it takes
    `upload`          "process", "thread", or "auto": a thread only for one rank without a GPU,
                      or until the process is ready
    `mtbf_s`          seconds between failures, as far as you know: where "auto" begins (8 hours)
    `on_error`        "go on" with training when a save fails, or "raise" at the next step
    """

    def __init__(
        self,
        where: "str | os.PathLike[str]",
        every: int | str = "auto",
        keep: int | Keep = 2,
        *,
        remote: "str | os.PathLike[str] | None" = None,
        keep_remote: int | Keep | None = None,
        staging_memory: int | None = None,
        upload: Literal["auto", "process", "thread"] = "auto",
        on_error: Literal["go on", "raise"] = "go on",
        mtbf_s: float | None = None,
    ) -> None:
        _refuse_wrong(upload, on_error, staging_memory, mtbf_s)
        near = named_storage(where)
        self._tiers = [near] + ([named_storage(remote)] if remote is not None else [])
        keep = keep if isinstance(keep, Keep) else Keep(last=keep)
        if keep_remote is None:
            keep_remote = keep
        elif not isinstance(keep_remote, Keep):
            keep_remote = Keep(last=keep_remote)
        far = self._tiers[1].root if remote is not None else None
        self._target = Target(where=near.root, remote=far, keep=keep, keep_remote=keep_remote)
        self._every, self._mtbf_s = every, mtbf_s
        self._upload, self._on_error = upload, on_error
        Schedule(every)  # refused now rather than at the first step
        self._orphaned = orphans.at_work(near)
        rank, size = (int(os.environ.get(name, d)) for name, d in (("RANK", 0), ("WORLD_SIZE", 1)))
        self._prefetch = Prefetch(self._tiers, rank, size, orphaned=self._orphaned)
        self._snapshots = Snapshots(staging_memory)
        self._met: Met | None = None
        self._decisions = 0
        self._last: tuple[int, State, float | None] | None = None
        self._saved_step = -1
        self._closed = False
        self._turn = threading.RLock()  # the loop's, unless it stands still
        self.durable: dict[str, int] = {}  # tier → the last step that is safe there
        self.errors: list[str] = []  # of the background, on any rank
        self._trouble = Trouble(self.errors)
        self.preempted = False
        fence.install()
        preemption.prepare()  # a loader that is made before `restore` has workers, too
        atexit.register(self._at_exit, os.getpid())

    # What a loop calls -----------------------------------------------------------------------

    def expected_step(self) -> int:
        """What `restore` will say if the newest checkpoint is good; known before there is a model.

        For a loader that is to begin early. Compare it with what `restore` did say. What a dead
        trainer's upload has in hand is expected to become one.
        """
        found = [entry for storage in self._tiers for entry in entries(storage)]
        steps = [entry.step for entry in found if entry.manifest is not None]
        return max([*steps, *map(orphans.step_of, self._orphaned)], default=-1) + 1

    def restore(
        self, state: MutableMapping[str, Any], *, skip: Collection[str] = (), strict: bool = True
    ) -> int:
        """The step to train next: after the newest good checkpoint, or 0 if there is none.

        Raises if checkpoints are there and none can be loaded. `skip` names what is left as it
        is; with `strict=False` so is what the checkpoint has not.
        """
        from torchett.checkpoint.restore import restore

        with recorded_stage("checkpoint_restore"):
            met = self._meet()
            if met.ranks.rank == 0:
                for storage in self._tiers:
                    left = storage.sweep()
                    if left:
                        log.info("torchett: deleted what a killed save left: %s", ", ".join(left))
            found = restore(state, self._tiers, met.ranks, self._prefetch, skip=skip, strict=strict)
            self._prefetch.clear()
        if found is None:
            return 0
        self._saved_step = found
        note("checkpoint_restored", {"step": found})
        return found + 1

    def step(self, step: int, state: State, *, metric: float | None = None) -> None:
        """The state after `step` is complete: save it if it is due. Returns at once."""
        if self._closed:
            return
        if self._on_error == "raise" and self.errors:
            raise CheckpointError(self.errors[-1])
        try:
            with self._turn:
                met = self._meet()
                self._prepare(met, state)
                met.passed(step)
                self._last = (step, state, metric)
                if met.preemption.due(step):
                    self._save_just_in_time(met, step, state, metric)
                    met.preemption.leave(step)
                elif met.schedule.due(step, met.ranks.decide):
                    self._save(met, step, state, metric)
        except Exception as error:
            self._trouble.warn(f"checkpoint of step {step} failed: {type(error).__name__}: {error}")
        finally:
            if self._met is not None:
                self._met.goes_on()
            fence.forget()

    def save(
        self, step: int, state: State, *, metric: float | None = None, wait: bool = False
    ) -> None:
        """Save the state after `step` whether it is due or not; on every rank."""
        with self._turn:
            met = self._meet()
            self._prepare(met, state)
            self._save(met, step, state, metric, must=True)
        if wait:
            self.wait()

    def fence(self) -> None:
        """Call this before changing weights in any other way than by an optimizer's step."""
        fence.run()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the save under way is over by then; the loop stands still meanwhile."""
        if self._met is None or not self._met.saves.busy:
            return True
        with blocked("checkpoint_blocked"):
            return self._met.saves.wait(timeout_s)

    def pin(self, step: int) -> str:
        """Path of the checkpoint of `step`, which retention will never delete from now on."""
        for entry in entries(self._tiers[0]):
            if entry.step == step and entry.manifest is not None:
                entry.storage.replace(f"{entry.name}/{PINNED}", b"")
                return entry.path
        raise CheckpointError(f"{self._tiers[0].root} has no checkpoint of step {step} to pin")

    def close(self, *, final: bool = True) -> None:
        """Make the last step's state safe (unless `final=False`) and end the background."""
        if self._closed:
            return
        self._closed = True
        met = self._met
        if met is None or os.getpid() != met.pid:
            return
        try:
            with self._turn, blocked("final_checkpoint"):
                if final and self._last is not None and self._last[0] > self._saved_step:
                    self._save(met, *self._last, must=True, account=None)
                fence.run()
                met.saves.wait(None if final else _EXIT_S)
                if self._target.remote is not None:
                    met.flushed_by(600.0 if final else _EXIT_S)
            if met.ranks.rank == 0 and met.schedule.auto is not None:
                met.history.write(met.schedule.auto.to_json(), clean=final)
        except Exception as error:
            self._trouble.warn(f"closing: {type(error).__name__}: {error}")
        met.preemption.close()
        met.ranks.close()
        met.uploader.close()
        outcome = met.saves.current.outcome if met.saves.current is not None else None
        if outcome is not None and outcome.error is not None:
            log.warning("torchett: the last checkpoint was not saved: %s", outcome.error)
            if final and self._on_error == "raise":
                raise CheckpointError(outcome.error)

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close(final=kind is None)

    @property
    def upload_pid(self) -> int | None:
        """The upload process of this rank, if there is one."""
        uploader = self._met.uploader if self._met is not None else None
        return uploader.pid if isinstance(uploader, ProcessUploader) else None

    # Behind it -------------------------------------------------------------------------------

    def _meet(self) -> Met:
        if self._met is None:
            orphans.wait_for(self._orphaned)
            ranks = meet()
            history = History(self._tiers[0])
            auto = history.read() if ranks.rank == 0 and self._every == "auto" else None
            self._met = Met(
                ranks,
                Schedule(self._every, auto_state=auto, mtbf_s=self._mtbf_s),
                Saves(self._on_durable, self._on_done),
                self._uploader(ranks),
                history,
            )
            self._tiers[0].make("")
            self._trouble.listen(ranks)
            self._met.preemption.when_told(self._watch_for_standstill)
        return self._met

    def _uploader(self, ranks: Ranks) -> Uploader:
        import torch

        # Beside a GPU's queue a thread that writes costs steps: 0.7 s a save of 8 GiB on an H200.
        apart = ranks.size > 1 or torch.cuda.is_available()
        if self._upload == "process" or (self._upload == "auto" and apart):
            return ProcessUploader(
                self._on_flushed, self._on_death, ranks.address, ranks.rank, ranks.size
            )
        return ThreadUploader(self._on_flushed, ranks.group)

    def _prepare(self, met: Met, state: State) -> None:
        """At the first step: make the memory for copies and the uploader ready."""
        if not self._snapshots.prepared:
            met.uploader.begin()
            self._snapshots.prepare(state, met.ranks)

    def _save(
        self,
        met: Met,
        step: int,
        state: State,
        metric: float | None,
        *,
        must: bool = False,
        account: str | None = "checkpoint_blocked",
    ) -> None:
        began = time.monotonic()
        self._decisions += 1
        if met.toll is not None and not met.saves.busy:
            met.toll.over()
            met.toll.settle()
        said = met.ranks.decide(f"save/{self._decisions}", lambda: self._choose(met, must))
        if said == "later":
            met.schedule.defer(step)
            return
        with blocked(account) if account else nullcontext():
            mark, generation, by = said.split()
            met.saves.wait()
            self._snapshots.wait()
            self._saved_step = step
            met.schedule.saved()
            if met.toll is not None:
                met.toll.save_begins()
            copy = self._begin(met, step, state, metric, mark, int(generation), by == "thread")
        if met.toll is not None:  # a thread costs more than the process that comes after it
            called_s = time.monotonic() - began
            met.toll.called(self._decisions, called_s, copy, early=by == "thread")

    def _choose(self, met: Met, must: bool) -> str:
        """On rank 0: whether to save now, into which fresh place, and by whom."""
        unready = met.schedule.steps is None and not self._snapshots.ready
        if (met.saves.busy or unready) and not must:
            return "later"
        # Only one process at a time flushes to a second tier: it protects what it has in hand.
        by_either = self._upload == "auto" and self._target.remote is None
        early = by_either and not met.uploader.is_ready()
        return f"{token()} {met.ranks.count('generation')} {'thread' if early else 'usual'}"

    def _begin(
        self,
        met: Met,
        step: int,
        state: State,
        metric: float | None,
        mark: str,
        generation: int,
        early: bool,
    ) -> Copy:
        """Begin to copy and hand the copy to the background; other ranks count on this one."""
        taken = self._snapshots.take(state)
        job = Job(
            step=step,
            token=mark,
            generation=generation,
            rank=met.ranks.rank,
            world_size=met.ranks.size,
            target=self._target,
            plan_id=taken.plan_id,
            plan=taken.plan,
            slots=taken.slots,
            blobs=taken.blobs,
            metric=metric,
            per_rank=taken.per_rank,
            poison=f"staging step {step}: {taken.problem}" if taken.problem else None,
        )
        by_thread = taken.is_held or early
        uploader = met.by_thread(self._on_flushed) if by_thread else met.uploader
        met.saves.begin(
            Save(
                job=job,
                arena=taken.arena,
                tensors=taken.tensors,
                copy=taken.copy,
                uploader=uploader,
            )
        )
        return taken.copy

    def _save_just_in_time(self, met: Met, step: int, state: State, metric: float | None) -> None:
        """The hardware will be taken away: save, and wait as long as there is time."""
        self.preempted = True
        began = time.monotonic()
        if step > self._saved_step:
            self._save(met, step, state, metric, must=True)
        with blocked("checkpoint_blocked"):
            fence.run()
            in_time = met.saves.wait(met.preemption.left_s())
        outcome = met.saves.current.outcome if met.saves.current is not None else None
        error = outcome.error if outcome is not None else None
        fact = {"step": step, "reason": met.preemption.reason, "durable": in_time and not error}
        note("preemption", {**fact, "seconds": time.monotonic() - began})
        log.warning(
            "torchett: told to end (%s): the state after step %d is %s",
            fact["reason"], step, "safe" if fact["durable"] else "NOT safe",
        )  # fmt: skip

    def _watch_for_standstill(self) -> None:
        """Notice was given: if no step ends for half of the grace, save what the loop stands at."""
        threading.Thread(target=self._save_standing, name="ett-standstill", daemon=True).start()

    def _save_standing(self) -> None:
        met, last = self._met, self._last
        assert met is not None
        time.sleep(met.preemption.left_s() / 2)
        moves = self._closed or self._last is not last  # and saves by itself
        if last is None or moves or not self._turn.acquire(blocking=False):
            return
        try:
            step, state, metric = last
            with fence.no_steps():
                why_not = unlike_its_last_step(state)
                if why_not is not None:
                    self._trouble.warn(f"step {step} is not saved while the loop stands: {why_not}")
                elif all_stand_at(step, met.ranks, met.preemption.left_s() / 4):
                    self._save_just_in_time(met, step, state, metric)
                    met.preemption.leave()
        except Exception as error:
            self._trouble.warn(f"saving step {step} while the loop stands: {error!r}")
        finally:
            self._turn.release()

    # What the background says ----------------------------------------------------------------

    def _on_durable(self, save: Save) -> None:
        """On rank 0, the moment it is durable."""
        checkpoint_durable(save.job.step)
        self.durable["local"] = save.job.step

    def _on_done(self, save: Save, outcome: Outcome) -> None:
        met = self._met
        assert met is not None
        if outcome.error is None:
            self.durable["local"] = outcome.step
            if met.schedule.auto is not None and met.ranks.rank == 0:
                met.schedule.auto.observe_upload(outcome.seconds)
                met.schedule.auto.observe_exposure(met.history.elapsed_s())
                met.history.write(met.schedule.auto.to_json(), clean=False)
            return
        self._saved_step = min(self._saved_step, outcome.step - 1)
        if not outcome.group_is_sound:
            met.ranks.count("generation", 1)
        self._trouble.report(
            f"the checkpoint of step {outcome.step} was not saved: {outcome.error}"
        )

    def _on_flushed(self, step: int, error: str | None) -> None:
        if error is None:
            self.durable["remote"] = step
            note("checkpoint_flushed", {"step": step})
        else:
            self._trouble.report(f"the checkpoint of step {step} was not flushed: {error}")

    def _on_death(self, said: str) -> None:
        met = self._met
        if met is None or self._closed:
            return
        try:
            met.ranks.count("generation", 1)
            self._trouble.report(f"{said} and was begun anew")
        except Exception as error:  # the store has gone with rank 0: the job is ending
            log.debug("torchett: %s, and nobody could be told: %s", said, error)

    def _at_exit(self, pid: int) -> None:
        """A process that ends without `close`: what is on its way arrives, nothing is begun."""
        if os.getpid() == pid:
            self.close(final=False)


def _refuse_wrong(upload: str, on_error: str, staging_memory: Any, mtbf_s: Any) -> None:
    """Say of a setting now what would go wrong with it at a save."""
    uploads, ways = ("auto", "process", "thread"), ("go on", "raise")
    room = staging_memory is None or (
        isinstance(staging_memory, int | float) and staging_memory >= 0
    )
    rate = mtbf_s is None or (isinstance(mtbf_s, int | float) and 0 < mtbf_s < math.inf)
    for name, value, good, expected in (
        ("upload", upload, upload in uploads, f"one of {uploads}"),
        ("on_error", on_error, on_error in ways, f"one of {ways}"),
        ("staging_memory", staging_memory, room, "a number of bytes, or None"),
        ("mtbf_s", mtbf_s, rate, "seconds above 0, or None"),
    ):
        if not good:
            raise ValueError(f"{name}={value!r}: expected {expected}")
