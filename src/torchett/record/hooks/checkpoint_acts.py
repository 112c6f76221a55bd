"""Saves and loads as hooks report them: which count. `saves.py` knows what they hold."""

from typing import TYPE_CHECKING, Any

from torchett.record.clock import now_ns
from torchett.record.hooks.never_raises import never_raises

if TYPE_CHECKING:
    from torchett.record.hooks.watcher import Watcher


class CheckpointActs:
    """Decides which saves and loads count, and passes their time to the step detector."""

    def __init__(self, watcher: "Watcher") -> None:
        self._watcher = watcher
        self._save_began = 0

    @property
    def disabled(self) -> bool:
        return self._watcher.disabled

    def disable(self, error: BaseException) -> None:
        self._watcher.disable(error)

    @never_raises
    def save_begins(self) -> Any:
        """A save begins: returns an open span, or None if it does not count."""
        if not self._watcher.trains_here():
            return None
        if not (self._watcher.detector.steps or self._watcher.writer.says_steps):
            return None
        self._save_began = now_ns()
        return self._watcher.saves.begins()

    @never_raises
    def save_ends(self, span: Any, saved: Any, target: Any) -> None:
        """A save ends; `saved` is None if it failed or continues in the background."""
        if span is not None:
            self._watcher.detector.explain(self._save_began, now_ns())
            self._watcher.saves.ends(span, saved, target, self._last_step())

    @never_raises
    def save_later(self, upload: Any, target: Any) -> None:
        """A save continues in the background; `upload` is its future."""
        safe = self._watcher.saves.later(target, self._last_step())
        upload.add_done_callback(lambda done: None if done.exception() else safe())

    def _last_step(self) -> int:
        """The step that a checkpoint made now holds."""
        return self._watcher.writer.saved_index(self._watcher.detector.index - 1)

    @never_raises
    def load_ends(self, loaded: Any, source: Any, t0: int) -> None:
        """Something was loaded."""
        watcher = self._watcher
        if watcher.before_training() and watcher.saves.loaded(loaded, source, t0, now_ns()):
            watcher.restored()

    @never_raises
    def state_ends(self, t0: int, optimizer: Any) -> None:
        """State was put into this optimizer, or (None) into a model."""
        if self._watcher.before_training():
            if optimizer is not None:
                self._watcher.saves.optimizer_taken(optimizer)
            if self._watcher.saves.state_taken(t0, now_ns(), optimizer is not None):
                self._watcher.restored()
