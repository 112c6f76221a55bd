"""torchett: every second of a PyTorch training job in exactly one account.

import torchett as ett

    ett.init()
    with ett.stage("train_module_creation"):
        model = ...
    for batch in ett.steps(loader):
        ...
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchett.checkpoint import Checkpointer
    from torchett.compile.compiled import compile
    from torchett.record.api import blocked, checkpoint_durable, init, stage, step, steps
    from torchett.startup import (
        Plan,
        background_imports,
        gather_objects_together,
        lazy_groups,
        remember_shapes,
        synthetic_like,
        warm_up,
    )

__all__ = [
    "Checkpointer",
    "Plan",
    "background_imports",
    "blocked",
    "checkpoint_durable",
    "compile",
    "gather_objects_together",
    "init",
    "lazy_groups",
    "remember_shapes",
    "stage",
    "step",
    "steps",
    "synthetic_like",
    "warm_up",
]
_RECORDING = ("blocked", "checkpoint_durable", "init", "stage", "step", "steps")
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """A name is imported when it is first used: a launcher needs none, recording but a few."""
    if name not in __all__:
        raise AttributeError(f"module 'torchett' has no attribute '{name}'")
    import importlib

    if name == "compile":
        return importlib.import_module("torchett.compile")  # a room that can be called
    room = "checkpoint" if name == "Checkpointer" else "startup"
    room = "record.api" if name in _RECORDING else room
    found = globals()[name] = getattr(importlib.import_module(f"torchett.{room}"), name)
    return found
