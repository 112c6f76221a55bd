"""An upload: what is in the arena becomes a checkpoint on storage, by DCP's own save.

The same function runs on a thread of the trainer and in the upload process. All ranks run it
together; rank 0 commits, and then, when the checkpoint is durable, moves `latest` and deletes what
retention gives up; then all ranks flush to the second tier (`flush.py`).
"""

import errno
import logging
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchett.levers.checkpoint.errors import CheckpointError
from torchett.levers.checkpoint.staging.arena import Slot
from torchett.levers.checkpoint.stored.retention import Keep, retain
from torchett.levers.checkpoint.stored.storage import Folder, Storage, open_storage
from torchett.levers.checkpoint.upload import commit as committing

log = logging.getLogger("torchett")

_LASTING = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT)
)


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
    compare: bool = False  # whether what ranks name alike is the same
    sums: Mapping[Any, int] = field(default_factory=dict)  # of tensors, taken where they were
    poison: str | None = None  # why this rank has nothing to give: it fails on all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadResult:
    """How an upload went: `error` is None if the checkpoint is durable."""

    step: int
    error: str | None = None
    group_is_sound: bool = True  # whether the ranks' uploaders can go on together
    name: str | None = None
    seconds: float = 0.0
    warning: str | None = None  # about a checkpoint that is durable
    can_retry: bool = False  # whether the same bytes may be uploaded at another attempt
    cpu_s: float = 0.0


def upload(
    job: Job,
    tensors: list[Any],
    group: Any,
    on_durable: Callable[[str], None],
    given_up: threading.Event | None = None,
    cpu_clock: Callable[[], float] = time.thread_time,
) -> UploadResult:
    """Write and commit; what goes wrong comes back as words, on every rank.

    Once it is `given_up` its memory may hold other bytes, so nothing is committed any more.
    """
    import torch.distributed.checkpoint as dcp

    from torchett.levers.checkpoint.upload.upload_plan import UploadPlanner
    from torchett.levers.checkpoint.upload.writer import VerifiedWriter

    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    storage = open_storage(job.target.where)
    place = storage.place(job.step, job.token)
    began, cpu_began_s = time.monotonic(), cpu_clock()

    def commit(sums: Any, items: int) -> str:
        if given_up is not None and given_up.is_set():
            raise CheckpointError("the upload was given up")
        made = committing.make_manifest(
            job.step, job.world_size, items, sums, job.metric, job.per_rank
        )
        name = committing.commit(storage, place, made)
        on_durable(name)
        return name

    planner = UploadPlanner(job.plan, tensors, job.blobs, job.poison, job.compare, job.sums)
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
        said, sound = _words(error)
        again = all(_may_pass(cause, storage) for cause in _causes(error))
        return UploadResult(step=job.step, error=said, group_is_sound=sound, can_retry=again)
    if job.rank == 0 and writer.committed is not None:
        _after(storage, writer.committed, job.target)
    seconds = time.monotonic() - began
    name = writer.committed
    if group is not None and job.target.remote is not None:  # every rank copies its own files
        name = _of_rank_0(name, group)
    kept = planner.rank_0_kept
    warning = (
        f"{len(kept)} buffers differ between ranks, {kept[0]!r} first: rank 0's are saved"
        if kept
        else None
    )
    cpu_s = cpu_clock() - cpu_began_s
    return UploadResult(step=job.step, name=name, seconds=seconds, warning=warning, cpu_s=cpu_s)


def _of_rank_0(name: str | None, group: Any) -> str | None:
    """The name that rank 0 has committed; None if the others are gone by now."""
    import torch.distributed as dist

    found = [name]
    try:
        dist.broadcast_object_list(found, src=dist.get_global_rank(group, 0), group=group)
    except Exception as error:
        log.debug("torchett: ranks cannot copy %s to the second tier together: %s", name, error)
    return found[0]


def _after(storage: Storage, name: str, target: Target) -> None:
    """What follows a durable checkpoint; it stays one if this fails."""
    try:
        committing.move_latest(storage, name)
        retain(storage, target.keep, frozenset(unflushed), committed=name)
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
        ranks: dict[str, list[int]] = {}
        for rank, (cause, _) in sorted(error.failures.items()):
            ranks.setdefault(f"{type(cause).__name__}: {cause}", []).append(rank)
        parts = [f"{_of(numbers)}: {said}" for said, numbers in ranks.items()]
        return "; ".join(parts)[:800], True
    sound = isinstance(error, OSError | CheckpointError)
    return f"{type(error).__name__}: {error}"[:500], sound


def _causes(error: BaseException) -> list[BaseException]:
    from torch.distributed.checkpoint.api import CheckpointException

    if isinstance(error, CheckpointException):
        return [cause for cause, _ in error.failures.values()]
    return [error]


def _may_pass(error: BaseException, storage: Storage) -> bool:
    """Whether another attempt may succeed: not on a full disk, nor with a state that is wrong."""
    if isinstance(error, CheckpointError):
        return False
    if isinstance(error, OSError):
        return error.errno not in _LASTING
    # Errors of an object store's library, and of a group that has lost a member:
    return not isinstance(storage, Folder) or type(error).__name__.startswith("Dist")


def _of(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"rank {ranks[0]} and {len(ranks) - 1} more"


unflushed: set[str] = set()  # committed here, not yet on the second tier: not to be deleted
