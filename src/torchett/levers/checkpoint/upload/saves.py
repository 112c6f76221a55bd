"""One save after another, in the background: from a copy under way to a durable checkpoint."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torchett.levers.checkpoint.staging.arena import Arena
from torchett.levers.checkpoint.upload.upload import Job, UploadResult
from torchett.levers.checkpoint.upload.upload_watch import UploadWatch
from torchett.levers.checkpoint.upload.uploaders import Uploader
from torchett.record.api import past_span
from torchett.record.clock import now_ns

log = logging.getLogger("torchett")


class Copy(Protocol):
    """A copy of the state: under way, or not made at all."""

    cpu_s: float  # that a thread beside the loop has needed for it

    @property
    def sums(self) -> Mapping[Any, int]:
        """Checksums of what was to be summed, once it is whole."""

    def wait(self) -> None:
        """Return when it is whole."""

    def waited_s(self) -> float:
        """Seconds the loop waited for it, beside the call."""

    def release(self) -> None:
        """The upload is over: nobody reads it any more."""


@dataclass(slots=True, kw_only=True)
class Save:
    """A checkpoint on its way."""

    job: Job
    arena: Arena
    tensors: list[Any]
    copy: Copy
    uploader: Uploader
    keys: list[str] = field(default_factory=list)  # in the store, read by all once this is over
    is_held: bool = False  # the state itself: training waits for it
    done: threading.Event = field(default_factory=threading.Event)
    outcome: UploadResult | None = None


class SaveThread:
    """Carries saves out, one at a time, on a thread."""

    def __init__(
        self,
        on_durable: Callable[[Save], None],
        on_done: Callable[[Save, UploadResult], None],
        watch: UploadWatch,
    ) -> None:
        self._on_durable, self._on_done, self._watch = on_durable, on_done, watch
        self._queue: queue.SimpleQueue[Save] = queue.SimpleQueue()
        self.current: Save | None = None
        self._thread = threading.Thread(target=self._work, name="ett-saves", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self.current is not None and not self.current.done.is_set()

    def begin(self, save: Save) -> None:
        assert not self.busy
        self.current = save
        self._queue.put(save)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the save under way is over by then; a failed attempt is its last."""
        if self.busy:
            self._watch.hurry()
        return self.current is None or self.current.done.wait(timeout_s)

    def _work(self) -> None:
        while True:
            save = self._queue.get()
            try:
                save.copy.wait()
                save.job.sums = save.copy.sums
            except Exception as error:  # the other ranks have to be told in the upload itself
                save.job.poison = str(error)
            began = now_ns()
            outcome = self._upload(save)
            past_span("x-checkpoint_upload", began, now_ns(), background=True)
            save.copy.release()
            save.outcome = outcome
            try:
                self._on_done(save, outcome)
            except Exception as error:
                log.debug("torchett: after a save: %s", error)
            save.done.set()

    def _upload(self, save: Save) -> UploadResult:
        """The outcome of the last attempt: on storage that fails for a while there are several."""

        def durable(name: str) -> None:
            self._on_durable(save)

        while True:
            try:
                outcome = save.uploader.upload(save.job, save.arena, save.tensors, durable)
            except Exception as error:
                said = f"{type(error).__name__}: {error}"[:500]
                outcome = UploadResult(step=save.job.step, error=said)
            if save.is_held:  # the loop waits for it
                outcome = replace(outcome, can_retry=False)
            try:
                another = self._watch.another(outcome)
            except Exception as error:
                log.debug("torchett: no word from rank 0: %s", error)
                return outcome
            if another is None:
                return outcome
            place, generation = another
            save.job = replace(save.job, token=place, generation=generation)
