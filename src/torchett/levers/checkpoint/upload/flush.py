"""The flush: a checkpoint that is durable is copied to the second tier, each rank its own files.

    rank 0   .metadata, __0_*.distcp ──┤ waits for all ─ manifest ─ `latest` ─ retention
    rank 1   __1_*.distcp ─────────────┤

A newer checkpoint goes first: one that still waits for its turn is left out on all ranks.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from torchett.levers.checkpoint.errors import CheckpointError
from torchett.levers.checkpoint.stored.catalog import read_manifest
from torchett.levers.checkpoint.stored.manifest import Manifest
from torchett.levers.checkpoint.stored.retention import retain
from torchett.levers.checkpoint.stored.storage import Storage, bytes_passed, open_storage
from torchett.levers.checkpoint.upload import commit as committing
from torchett.levers.checkpoint.upload.upload import Job, unflushed

log = logging.getLogger("torchett")

_AT_ONCE = 4  # files of a rank
_ASK_S = 0.2
_STALL_S = 600.0
_TELL_S = 10.0

Count = Callable[[str, int], int]  # a counter that all ranks share


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """A rank's part of copying a checkpoint."""

    job: Job
    name: str  # of the checkpoint on the first tier

    def key(self, what: str) -> str:
        return f"flush/{self.job.token}/{what}"


class Flusher:
    """Copies this rank's part of committed checkpoints, on a thread.

    `on_flushed` is called with the step and what went wrong: on rank 0 when a checkpoint is whole
    on the second tier, elsewhere only if something is wrong; `on_part` when nothing is left to do.
    """

    def __init__(
        self,
        on_flushed: Callable[[int, str | None], None],
        count: Count,
        on_part: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_flushed, self._on_part, self._count = on_flushed, on_part, count
        self._next: Flush | None = None
        self._wake = threading.Condition()
        self._busy = False
        self._thread: threading.Thread | None = None

    def flush(self, job: Job, name: str) -> None:
        """Have a checkpoint copied; one that still waits is left out in favour of it."""
        with self._wake:
            left_out, self._next = self._next, Flush(job=job, name=name)
            unflushed.add(name)
            if left_out is not None:
                unflushed.discard(left_out.name)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="ett-flush", daemon=True)
                self._thread.start()
            self._wake.notify_all()
        if left_out is not None and job.world_size > 1:
            self._count(left_out.key("failed"), 1)

    def wait(self, timeout_s: float) -> bool:
        """Whether everything is flushed by then."""
        with self._wake:
            return self._wake.wait_for(lambda: self._next is None and not self._busy, timeout_s)

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._next is not None)
                assert self._next is not None
                flush, self._next, self._busy = self._next, None, True
            error = None
            try:
                flush_now(flush, self._count)
            except LeftOut as left_out:
                log.info("torchett: %s", left_out)
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
            unflushed.discard(flush.name)
            try:
                if flush.job.rank == 0 or error is not None:
                    self._on_flushed(flush.job.step, error)
                with self._wake:
                    if self._next is None:
                        self._on_part()
            except Exception as failure:
                log.debug("torchett: after a flush: %s", failure)
            with self._wake:
                self._busy = False
                self._wake.notify_all()


class LeftOut(CheckpointError):  # noqa: N818
    """A checkpoint that another rank has failed to copy, or left out for a newer one."""


def flush_now(flush: Flush, count: Count) -> None:
    """Copy this rank's files; on rank 0, commit once all ranks have copied theirs."""
    job, target = flush.job, flush.job.target
    assert target.remote is not None
    near, far = open_storage(target.where), open_storage(target.remote)
    manifest = read_manifest(near, flush.name)
    place = far.place(job.step, job.token)
    far.make("")
    far.make(place)
    shared = job.world_size > 1
    try:
        with ThreadPoolExecutor(_AT_ONCE, "ett-flush") as pool:
            copies = [
                pool.submit(committing.copy_file, near, flush.name, far, place, name, told)
                for name, told in manifest.files.items()
                if rank_of(name) == job.rank
            ]
            _follow(lambda: all(copy.done() for copy in copies), flush, count, shared)
            for copy in copies:
                copy.result()
        far.sync(place)
    except Exception:
        if shared:
            count(flush.key("failed"), 1)
        if job.rank == 0:
            _discard(far, place)
        raise
    if shared:
        count(flush.key("done"), 1)
    if job.rank != 0:
        return
    try:
        if shared:
            _wait_for_all(flush, count)
        _commit(flush, manifest, place)
    except Exception:
        _discard(far, place)
        raise


def rank_of(name: str) -> int:
    """The rank that wrote a file: of `__3_0.distcp`, 3; of the metadata, 0."""
    number = name.removeprefix("__").partition("_")[0]
    return int(number) if name.startswith("__") and number.isdigit() else 0


def _follow(is_over: Callable[[], bool], flush: Flush, count: Count, shared: bool) -> None:
    """Return when it is over; tell the others now and then that bytes are still moving."""
    told_s, told = time.monotonic(), -1
    while not is_over():
        time.sleep(_ASK_S / 10)
        if shared and time.monotonic() - told_s > _TELL_S and bytes_passed() != told:
            told_s, told = time.monotonic(), bytes_passed()
            count(flush.key("moved"), 1)


def _wait_for_all(flush: Flush, count: Count) -> None:
    moved, moved_s = -1, time.monotonic()
    while (done := count(flush.key("done"), 0)) < flush.job.world_size:
        if count(flush.key("failed"), 0):
            raise LeftOut(f"step {flush.job.step} is not copied: another rank has left it out")
        now = count(flush.key("moved"), 0) + done
        if now != moved:
            moved, moved_s = now, time.monotonic()
        if time.monotonic() - moved_s > _STALL_S:
            raise CheckpointError(f"{done} of {flush.job.world_size} ranks have copied their files")
        time.sleep(_ASK_S)


def _commit(flush: Flush, manifest: Manifest, place: str) -> None:
    assert flush.job.target.remote is not None
    far = open_storage(flush.job.target.remote)
    there = committing.commit(far, place, manifest)
    committing.move_latest(far, there)
    retain(far, flush.job.target.keep_remote, committed=there)


def _discard(far: Storage, place: str) -> None:
    try:
        far.delete(place)
    except Exception as error:
        log.debug("torchett: %s stays until the next start: %s", place, error)
