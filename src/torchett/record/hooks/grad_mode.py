"""When gradients are off on the thread that trains: one of the signs of evaluation.

    no_grad enter ── compute ── exit       ─► detector.grad_off(begin, end)
    └ nested ones count as the outermost

In a loop that has settled the hooks are taken out, and put back while it evaluates.
"""

import sys

from torchett.record.clock import now_ns
from torchett.record.hooks.steps.step_detector import StepDetector
from torchett.record.patches import Installed

_LEARNED = 64  # after so many steps it is known how a loop evaluates


class GradMode:
    """How deep the training thread is in blocks without gradients, and since when."""

    def __init__(self, hooks: list[Installed]) -> None:
        self._hooks = hooks
        self.watched = bool(hooks)
        self._depth = self._since = 0

    def forget(self) -> None:
        """Switch to another training thread."""
        self._depth = 0

    @property
    def since(self) -> int:
        """When gradients were turned off; 0 if they are on, or that does not matter."""
        return self._since if self._depth else 0

    def watch(self, on: bool) -> None:
        """Install the hooks, or remove them."""
        if on != self.watched and self._hooks:
            self.watched = on
            self._depth = 0
            for hook in self._hooks:
                (hook.restore if on else hook.remove)()

    def settle(self, detector: StepDetector) -> None:
        """Remove the hooks from a loop whose evaluation is seen without them."""
        if detector.steps > _LEARNED and detector.evaluates_openly():
            self.watch(False)

    def begins(self, in_work: bool) -> None:
        """Gradients are turned off; during a step's work that is not an evaluation."""
        self._depth += 1
        if self._depth == 1:
            self._since = 0 if in_work else now_ns()

    def ends(self, detector: StepDetector) -> None:
        """Gradients are as they were before."""
        if not self._depth:  # since before it was watched
            detector.grad_off(0, now_ns())
            return
        self._depth -= 1
        if not self._depth and self._since:
            detector.grad_off(self._since, now_ns())


def grad_enabled() -> bool:
    return bool(sys.modules["torch"].is_grad_enabled())
