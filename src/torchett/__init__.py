"""torchett: every second of a PyTorch training job in exactly one account.

import torchett as ett

    ett.init()
    with ett.stage("train_module_creation"):
        model = ...
    for batch in ett.steps(loader):
        ...
"""

from typing import TYPE_CHECKING, Any

from torchett.record import blocked, checkpoint_durable, init, stage, step, steps

if TYPE_CHECKING:
    from torchett.checkpoint import Checkpointer
    from torchett.compile.compiled import compile
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
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Levers are imported when they are first used: recording alone costs less."""
    if name == "compile":
        import importlib

        return importlib.import_module("torchett.compile")  # a room that can be called
    if name == "Checkpointer":
        from torchett.checkpoint import Checkpointer

        return Checkpointer
    if name in __all__:
        from torchett import startup

        return getattr(startup, name)
    raise AttributeError(f"module 'torchett' has no attribute '{name}'")
