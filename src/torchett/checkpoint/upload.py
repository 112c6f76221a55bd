"""An upload: what is in the arena becomes a checkpoint on storage, by DCP's own save.

The same function runs on a thread of the trainer and in the upload process. All ranks run it
together; rank 0 commits, and then, when the checkpoint is durable, moves `latest`, deletes what
retention gives up, and flushes to the second tier.
"""

import logging
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchett.checkpoint import commit as committing
from torchett.checkpoint.arena import Slot
from torchett.checkpoint.catalog import Entry, read_manifest
from torchett.checkpoint.errors import CheckpointError
from torchett.checkpoint.retention import Keep, retain
from torchett.checkpoint.storage import Storage, open_storage, order

log = logging.getLogger("torchett")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where checkpoints of a job go, and which of them stay."""

    where: str
    remote: str | None
    keep: Keep
    keep_remote: Keep


@dataclass(slots=True, kw_only=True)
class Job:
    """One checkpoint to upload, as a rank tells its uploader."""

    step: int
    token: str
    generation: int
    rank: int
    world_size: int
    target: Target
    plan_id: str
    plan: Any  # None: the one of this id that was sent before
    slots: list[Slot] | None
    blobs: list[bytes]
    metric: float | None
    per_rank: tuple[str, ...]
    poison: str | None = None  # why this rank has nothing to give: it fails on all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an upload went: `error` is None if the checkpoint is durable."""

    step: int
    error: str | None = None
    group_is_sound: bool = True  # whether the ranks' uploaders can go on together
    name: str | None = None
    seconds: float = 0.0


def upload(job: Job, tensors: list[Any], group: Any, on_durable: Callable[[str], None]) -> Outcome:
    """Write and commit; what goes wrong comes back as words, on every rank."""
    import torch.distributed.checkpoint as dcp

    from torchett.checkpoint.planner_of_upload import UploadPlanner
    from torchett.checkpoint.writer import VerifiedWriter

    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    storage = open_storage(job.target.where)
    place = storage.place(job.step, job.token)
    began = time.monotonic()

    def commit(sums: Any, items: int) -> str:
        made = committing.make_manifest(
            job.step, job.world_size, items, sums, job.metric, job.per_rank
        )
        name = committing.commit(storage, place, made)
        on_durable(name)
        return name

    planner = UploadPlanner(job.plan, tensors, job.blobs, job.poison)
    writer = VerifiedWriter(storage, place, commit)
    try:
        dcp.save(
            {}, storage_writer=writer, planner=planner, process_group=group, no_dist=group is None
        )
    except BaseException as error:  # DCP's CheckpointException is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        if job.rank == 0 and writer.committed is None:
            _discard(storage, place)
        said, planned = _words(error)
        return Outcome(step=job.step, error=said, group_is_sound=planned)
    if job.rank == 0 and writer.committed is not None:
        _after(storage, writer.committed, job.target)
    seconds = time.monotonic() - began
    return Outcome(step=job.step, name=writer.committed, seconds=seconds)


def _after(storage: Storage, name: str, target: Target) -> None:
    """What follows a durable checkpoint; it stays one if this fails."""
    try:
        committing.move_latest(storage, name)
        protect = frozenset({name, *_unflushed})
        retain(storage, target.keep, protect)
        committing.reached("retained")
    except Exception as error:
        log.warning("torchett: %s is durable, but what follows failed: %s", name, error)


def _discard(storage: Storage, place: str) -> None:
    try:
        if place in storage.names():
            storage.delete(place)
    except Exception as error:
        log.debug("torchett: %s stays until the next start: %s", place, error)


def _words(error: BaseException) -> tuple[str, bool]:
    """What went wrong in a line, and whether all ranks were told so by DCP's own exchange."""
    from torch.distributed.checkpoint.api import CheckpointException

    if isinstance(error, CheckpointException):
        parts = []
        for rank, (cause, _) in sorted(error.failures.items()):
            parts.append(f"rank {rank}: {type(cause).__name__}: {cause}")
        return "; ".join(parts)[:500], True
    sound = isinstance(error, OSError | CheckpointError)
    return f"{type(error).__name__}: {error}"[:500], sound


_unflushed: set[str] = set()  # committed here, not yet on the second tier


class Flusher:
    """Copies committed checkpoints to the second tier, on a thread; a newer one goes first."""

    def __init__(self, on_flushed: Callable[[int, str | None], None]) -> None:
        self._on_flushed = on_flushed
        self._next: tuple[Target, str] | None = None
        self._wake = threading.Condition()
        self._busy = False
        self._thread: threading.Thread | None = None

    def flush(self, target: Target, name: str) -> None:
        """Have a checkpoint copied; one that still waits is left out in favour of it."""
        with self._wake:
            if self._next is not None:
                _unflushed.discard(self._next[1])
            self._next = (target, name)
            _unflushed.add(name)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="ett-flush", daemon=True)
                self._thread.start()
            self._wake.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Whether everything is flushed by then."""
        with self._wake:
            return self._wake.wait_for(lambda: self._next is None and not self._busy, timeout_s)

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._next is not None)
                assert self._next is not None
                (target, name), self._next, self._busy = self._next, None, True
            place = order(name)
            step = place[0] if place else -1
            error = None
            try:
                flush_now(target, name)
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
            _unflushed.discard(name)
            self._on_flushed(step, error)
            with self._wake:
                self._busy = False
                self._wake.notify_all()


def flush_now(target: Target, name: str) -> str:
    """The name on the second tier of a checkpoint of the first."""
    assert target.remote is not None
    near, far = open_storage(target.where), open_storage(target.remote)
    place = order(name)
    assert place is not None
    entry = Entry(storage=near, name=name, order=place, manifest=read_manifest(near, name))
    far.make("")
    there = committing.copy_over(entry, far)
    committing.move_latest(far, there)
    retain(far, target.keep_remote, frozenset({there}))
    return there
