"""Hooks: an unchanged training script is observed from inside its own process.

    install_plugin() ─► imports are timed, and each part of torch is hooked as it is imported
                    │ acts: a process group, a model, a fetch, a forward or backward pass, an update
                    ▼
    watcher         whose acts count (the thread that trains, not a loader's worker)
                    acts before the loop ─► spans of the start accounts; the first opens the record
    step_detector   acts of the loop     ─► steps, waits, evaluation
    saves           checkpoints          ─► blocked and restoring time, what is durable, where it
                                            resumes
    span_writer     writes them into the record, unless the script says them itself

A process that never trains opens no record. What the script says itself through torchett's own
functions wins over what is seen here. A hook that fails turns all of them off, with one warning.
"""

from collections.abc import Callable
from types import ModuleType

from torchett.record.plugins import when_imported


def install_plugin() -> None:
    """Time imports from here on, and hook torch as far as the script imports it."""
    from torchett.record.hooks import torch_hooks
    from torchett.record.hooks.watcher import watcher

    if watcher.watch():
        hook(torch_hooks.SAVES)
        hook(torch_hooks.STEPS)


def hook(hooks: dict[str, list[Callable[[ModuleType], None]]]) -> None:
    """Hook each of these modules once it is imported."""
    for name, patches in hooks.items():
        for patch in patches:
            when_imported(name, patch)
