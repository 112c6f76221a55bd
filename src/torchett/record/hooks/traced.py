"""Hooks that torch.compile traces into: a compiled function contains no trace of them.

A compiled optimizer step so stays one graph, and is not seen here; see `step_detector` for what
counts then.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchett.record.hooks.watcher import watcher


def make(
    torch: ModuleType,
) -> tuple[Callable[..., None], Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """The hook after an update, and a wrapper for zero_grad."""

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_dynamo_compiling():
            watcher.update_ends(optimizer)

    def zeroing(zero_grad: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, set_to_none: bool = True) -> Any:
            if not torch.compiler.is_dynamo_compiling():
                watcher.gradients_zeroed()
            return zero_grad(self, set_to_none)

        return wrapped

    return after, zeroing
