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
    from torchett.startup import (
        Plan,
        background_imports,
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
    "init",
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
    if name == "Checkpointer":
        from torchett.checkpoint import Checkpointer

        return Checkpointer
    if name in __all__:
        from torchett import startup

        return getattr(startup, name)
    raise AttributeError(f"module 'torchett' has no attribute '{name}'")
