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
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Literal

from torchett.levers.checkpoint.errors import CheckpointError
from torchett.levers.checkpoint.interval.schedule import Schedule
from torchett.levers.checkpoint.memory.job_key import known_job
from torchett.levers.checkpoint.memory.left_over import LeftOver
from torchett.levers.checkpoint.preemption import preemption
from torchett.levers.checkpoint.preemption.just_in_time import (
    save_just_in_time,
    when_standing,
)
from torchett.levers.checkpoint.restore.prefetch import Prefetch
from torchett.levers.checkpoint.save_events import SaveEvents
from torchett.levers.checkpoint.save_session import SaveConfig, SaveSession
from torchett.levers.checkpoint.staging import fence
from torchett.levers.checkpoint.store_coordinator import meet
from torchett.levers.checkpoint.stored.catalog import PINNED, entries
from torchett.levers.checkpoint.stored.one_writer import one_writer
from torchett.levers.checkpoint.stored.retention import Keep
from torchett.levers.checkpoint.stored.storage import named_storage
from torchett.levers.checkpoint.upload.upload import Target
from torchett.levers.checkpoint.upload.uploaders import ProcessUploader
from torchett.record.api import blocked, note
from torchett.record.api import stage as recorded_stage

if TYPE_CHECKING:
    from torchett.levers.checkpoint.restore.restore import Restored

log = logging.getLogger("torchett")

State = Mapping[str, Any]
_LEAVES_S = 20.0  # how long a killed process may take to leave the folder to this one
_UNKNOWN = "not asked yet"
_EXIT_S = 120.0  # how long a process on its way out waits for an upload


class Checkpointer:
    """Saves and restores the state of a training job.

    `every`           steps (500), seconds ("600s", "10m"), or "auto": the interval that wastes
                      least, by what saves and failures are seen to cost
    `keep`            how many of the last ones, or a `Keep` (every n-th, the best, …)
    `remote`          a second tier; checkpoints are flushed to it in the background
    `snapshot_every`  as `every`, for snapshots that stay in memory when ranks are killed, and are
                      copied to another node where there is one; None: no such snapshots
    `staging_memory`  bytes a rank may hold for copies of its state (1 for saves, 3 with snapshots,
                      5 with another node's); None: most of what memory is left to it
    `upload`          "process", "thread", or "auto": a thread only for one rank without a GPU,
                      or until the process is ready
    `mtbf_s`          seconds between failures, as far as you know: where "auto" begins (8 hours)
    `on_error`        "go on" with training when a save fails, or "raise" at the next step
    `upload_stall_s`  seconds without a byte written, on any rank, before an upload is given up
    `neighbour_mb_s`  megabytes a second at which a rank sends its snapshots to another node
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
        upload_stall_s: float = 600.0,
        snapshot_every: int | str | None = "auto",
        neighbour_mb_s: float = 250.0,
    ) -> None:
        _refuse_wrong(upload, on_error, staging_memory, mtbf_s, upload_stall_s, neighbour_mb_s)
        near = named_storage(where)
        self._tiers = [near] + ([named_storage(remote)] if remote is not None else [])
        keep = keep if isinstance(keep, Keep) else Keep(last=keep)
        if keep_remote is None:
            keep_remote = keep
        elif not isinstance(keep_remote, Keep):
            keep_remote = Keep(last=keep_remote)
        far = self._tiers[1].root if remote is not None else None
        for wanted in (every, snapshot_every):  # refused now rather than at the first step
            if wanted is not None:
                Schedule(wanted)
        self._config = SaveConfig(
            target=Target(where=near.root, remote=far, keep=keep, keep_remote=keep_remote),
            every=every,
            snapshot_every=snapshot_every,
            mtbf_s=mtbf_s,
            staging_memory=staging_memory,
            upload=upload,
            upload_stall_s=upload_stall_s,
            neighbour_bytes_per_s=neighbour_mb_s * 1e6,
        )
        self._on_error = on_error
        self._writer = one_writer(near)
        rank, size = (int(os.environ.get(name, d)) for name, d in (("RANK", 0), ("WORLD_SIZE", 1)))
        self._left = LeftOver(near.root, rank, size, usable=snapshot_every is not None)
        self._prefetch = Prefetch(self._tiers, rank, size, newer=self._left.newest_step)
        self._events = SaveEvents()
        self.durable = self._events.durable  # tier → the last step that is safe there
        self.errors = self._events.errors  # of the background, on any rank
        self._met: SaveSession | None = None
        self._restored_tier: str | None = None
        self._restored_token: str | None = None
        self._last: tuple[int, State, float | None] | None = None
        self._swept = False
        self._other: str | None = _UNKNOWN  # who saves here instead of us
        self._closed = False
        self._turn = threading.RLock()  # the loop's, unless it stands still
        self.preempted = False
        fence.install()
        preemption.prepare()  # a loader that is made before `restore` has workers, too
        atexit.register(self._at_exit, os.getpid())

    # What a loop calls -----------------------------------------------------------------------

    def expected_step(self) -> int:
        """What `restore` will say if the newest checkpoint is good; known before there is a model.

        For a loader that is to begin early. Compare it with what `restore` did say.
        """
        found = [entry for storage in self._tiers for entry in entries(storage)]
        steps = [entry.step for entry in found if entry.manifest is not None]
        return max([*steps, self._left.newest_step()], default=-1) + 1

    def restore(
        self, state: MutableMapping[str, Any], *, skip: Collection[str] = (), strict: bool = True
    ) -> int:
        """The step to train next: after the newest good checkpoint, or 0 if there is none.

        Raises if checkpoints are there and none can be loaded. While another job saves here,
        nothing is deleted or renamed. `skip` names what is left as it is; with `strict=False` so is
        what the checkpoint has not.
        """
        from torchett.levers.checkpoint.restore.restore import restore

        with recorded_stage("checkpoint_restore"):
            met = self._meet()
            alone = met.ranks.rank == 0 and self._sweep()
            job = known_job(self._tiers[0]) if alone else None
            found = restore(
                state,
                self._tiers,
                met.ranks,
                self._prefetch,
                left=self._left,
                job=met.ranks.gather(job)[0],
                skip=skip,
                strict=strict,
                put_aside=alone,
            )
            self._prefetch.clear()
            if (
                self._other is _UNKNOWN
            ):  # it may be one that only reads: it claims at its first step
                self._writer.release()
        return self._goes_on_after(met, found)

    def _goes_on_after(self, met: SaveSession, found: "Restored | None") -> int:
        """Take note of what was restored; the step to train next."""
        if found is None:
            return 0
        self._restored_tier, met.restored_token = found.tier, found.token
        if found.tier == "durable":
            self._events.saved_step = found.step
        elif met.ranks.rank == 0:
            newest = [e.manifest.created_s for e in entries(self._tiers[0])[:1] if e.manifest]
            met.schedule.last_saved(time.time() - newest[0] if newest else math.inf)
        fact = {"step": found.step, "tier": found.tier, "tiers": found.tiers}
        fact["bytes"] = found.nbytes
        note("checkpoint_restored", {**fact, "refused": list(found.refused)[:4]})
        if met.ranks.rank == 0:
            log.info("torchett: step %d is restored, %s", found.step, found.said())
        return found.step + 1

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
                    self.preempted = True
                    save_just_in_time(met, self._events.saved_step, step, state, metric)
                    met.preemption.leave(step)
                else:
                    met.save_if_due(step, state, metric)
        except Exception as error:
            if self._other not in (None, _UNKNOWN):
                raise
            self._events.rank_errors.warn(
                f"checkpoint of step {step} failed: {type(error).__name__}: {error}"
            )
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
            met.save(step, state, metric, must=True)
        if wait:
            self.wait()

    @staticmethod
    def load(
        where: "str | os.PathLike[str]",
        keys: str | Iterable[str] | None = None,
        *,
        dtype: Any = None,
        device: Any = "cpu",
    ) -> dict[str, Any]:
        """The values of a checkpoint, read-only, from any process: no ranks, no model, no locks.

        Checkpointer.load("checkpoints/run-7", keys="model", dtype=torch.bfloat16)["model"]
        """
        from torchett.levers.checkpoint.stored.reading import load

        return load(where, keys, dtype=dtype, device=device)

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
        self._closed = self._events.is_closed = True
        met = self._met
        if met is None or os.getpid() != met.pid:
            return
        try:
            with self._turn, blocked("final_checkpoint"):
                if final and self._last is not None and self._last[0] > self._events.saved_step:
                    met.save(*self._last, must=True, account=None)
                fence.run()
                met.saves.wait(None if final else _EXIT_S)
                if self._config.target.remote is not None:
                    met.flushed_by(600.0 if final else _EXIT_S)
            met.schedules.write_history(clean=final)
        except Exception as error:
            self._events.rank_errors.warn(f"closing: {type(error).__name__}: {error}")
        self._writer.release()
        met.close(ended_well=final)
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

    def _meet(self) -> SaveSession:
        if self._met is None:
            self._met = SaveSession(meet(), self._config, self._tiers[0], self._left, self._events)
            self._tiers[0].make("")
            self._met.preemption.when_told(self._watch_for_standstill)
        return self._met

    def _watch_for_standstill(self) -> None:
        """Notice was given."""
        met, last = self._met, self._last
        assert met is not None
        when_standing(met, lambda: self._closed or self._last is not last, self._turn)

    def _sweep(self) -> bool:
        """On rank 0: whether this job is the only one that writes here; then leftovers go."""
        other = self._writer.take()
        if other is not None:
            log.info("torchett: %s saves to %s: it is only read", other, self._tiers[0].root)
            return False
        if self._writer.is_shared():
            return False
        self._swept = True
        for storage in self._tiers:
            if left := storage.sweep():
                log.info("torchett: deleted what a killed save left: %s", ", ".join(left))
        return True

    def _refuse_a_second_writer(self, met: SaveSession) -> None:
        """CheckpointError on every rank if another job saves here; a process that ends may."""
        other = self._writer.take(_LEAVES_S) if met.ranks.rank == 0 else None
        if met.ranks.rank == 0 and other is None and not self._swept:
            self._sweep()
        self._other = met.ranks.gather(other)[0]

    def _prepare(self, met: SaveSession, state: State) -> None:
        """At the first step: make the memory for copies and the uploader ready."""
        if self._other is _UNKNOWN:
            self._refuse_a_second_writer(met)
        if self._other is not None:
            raise CheckpointError(
                f"{self._tiers[0].root} is where {self._other} saves its checkpoints: two jobs "
                "cannot save to one folder; end that one, or give this one a folder of its own"
            )
        if not met.snapshots.prepared:
            met.schedules.count_failure(self._restored_tier)
            met.prepare(state)

    def _at_exit(self, pid: int) -> None:
        """A process that ends without `close`: what is on its way arrives, nothing is begun."""
        if os.getpid() == pid:
            self.close(final=False)


def _refuse_wrong(
    upload: str,
    on_error: str,
    staging_memory: Any,
    mtbf_s: Any,
    upload_stall_s: Any,
    neighbour_mb_s: Any,
) -> None:
    """Say of a setting now what would go wrong with it at a save."""
    uploads, ways = ("auto", "process", "thread"), ("go on", "raise")
    room = staging_memory is None or (
        isinstance(staging_memory, int | float) and staging_memory >= 0
    )
    rate = mtbf_s is None or (isinstance(mtbf_s, int | float) and 0 < mtbf_s < math.inf)
    stall = isinstance(upload_stall_s, int | float) and upload_stall_s > 0
    for name, value, good, expected in (
        ("upload", upload, upload in uploads, f"one of {uploads}"),
        ("on_error", on_error, on_error in ways, f"one of {ways}"),
        ("staging_memory", staging_memory, room, "a number of bytes, or None"),
        ("mtbf_s", mtbf_s, rate, "seconds above 0, or None"),
        ("upload_stall_s", upload_stall_s, stall, "seconds above 0"),
        ("neighbour_mb_s", neighbour_mb_s, neighbour_mb_s > 0, "megabytes a second above 0"),
    ):
        if not good:
            raise ValueError(f"{name}={value!r}: expected {expected}")
