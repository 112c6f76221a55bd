"""Hooks: a training script that nobody changed, watched from inside its own process.

    board() ─► imports are timed, and each part of torch is hooked as the script imports it
                    │ acts: a process group, a model, a fetch, a backward pass, an update, a save
                    ▼
    watcher   whose acts count (the thread that trains, not a loader's worker)
    startup   acts before the loop  ─► spans of the start accounts; the first one opens the record
    loop      acts of the loop      ─► steps, waits, evaluation
    settled   the same, at the least cost, while one step is like the other
    saves     checkpoints           ─► blocked and restoring time, what is durable, where it resumes

A process that never trains opens no record. What the script says itself through torchett's own
functions wins over what is seen here. A hook that fails turns all of them off, with one warning.
"""

from torchett.record.boarding import when_imported


def board() -> None:
    """Time imports from here on, and hook torch as far as the script imports it."""
    from torchett.record.hooks import patches
    from torchett.record.hooks.watcher import watcher

    watcher.come_aboard()
    for name, patch in patches.PATCHES.items():
        when_imported(name, patch)
