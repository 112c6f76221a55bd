"""torchett: every second of a PyTorch training job in exactly one account.

import torchett as ett

    ett.init()
    with ett.stage("train_module_creation"):
        model = ...
    for batch in ett.steps(loader):
        ...
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchett.levers.checkpoint import (
        Checkpointer,
        CheckpointError,
        CorruptCheckpoint,
        Keep,
        PerRank,
        RandomState,
        StateMismatch,
    )
    from torchett.levers.communication.gathers import gather_objects_together
    from torchett.levers.communication.groups import lazy_groups
    from torchett.levers.compile.compiled import compile
    from torchett.levers.publish.errors import PublishError
    from torchett.levers.publish.trainer import publish
    from torchett.levers.startup.first_compile.fast_batch import warm_up
    from torchett.levers.startup.first_compile.shapes import remember_shapes, synthetic_like
    from torchett.levers.startup.imports import background_imports
    from torchett.levers.startup.plan.plan import Plan
    from torchett.model.accounts import ACCOUNTS
    from torchett.model.errors import EttError, InputError, RunError
    from torchett.record.api import (
        blocked,
        checkpoint_durable,
        init,
        resumed,
        span,
        stage,
        step,
        steps,
    )
    from torchett.runs.arrow_tables import load

__all__ = [
    "ACCOUNTS",
    "CheckpointError",
    "Checkpointer",
    "CorruptCheckpoint",
    "EttError",
    "InputError",
    "Keep",
    "PerRank",
    "Plan",
    "PublishError",
    "RandomState",
    "RunError",
    "StateMismatch",
    "background_imports",
    "blocked",
    "checkpoint_durable",
    "compile",
    "gather_objects_together",
    "init",
    "lazy_groups",
    "load",
    "publish",
    "remember_shapes",
    "resumed",
    "span",
    "stage",
    "step",
    "steps",
    "synthetic_like",
    "warm_up",
]
_HOME = {
    "ACCOUNTS": "model.accounts",
    "CheckpointError": "levers.checkpoint",
    "Checkpointer": "levers.checkpoint",
    "CorruptCheckpoint": "levers.checkpoint",
    "EttError": "model.errors",
    "InputError": "model.errors",
    "Keep": "levers.checkpoint",
    "PerRank": "levers.checkpoint",
    "Plan": "levers.startup.plan.plan",
    "PublishError": "levers.publish.errors",
    "RandomState": "levers.checkpoint",
    "RunError": "model.errors",
    "StateMismatch": "levers.checkpoint",
    "background_imports": "levers.startup.imports",
    "blocked": "record.api",
    "checkpoint_durable": "record.api",
    "compile": "levers.compile.compiled",
    "gather_objects_together": "levers.communication.gathers",
    "init": "record.api",
    "lazy_groups": "levers.communication.groups",
    "load": "runs.arrow_tables",
    "publish": "levers.publish.trainer",
    "remember_shapes": "levers.startup.first_compile.shapes",
    "resumed": "record.api",
    "span": "record.api",
    "stage": "record.api",
    "step": "record.api",
    "steps": "record.api",
    "synthetic_like": "levers.startup.first_compile.shapes",
    "warm_up": "levers.startup.first_compile.fast_batch",
}
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """A name is imported when it is first used: a launcher needs none, recording but a few."""
    if name not in _HOME:
        raise AttributeError(f"module 'torchett' has no attribute '{name}'")
    import importlib

    module = importlib.import_module(f"torchett.{_HOME[name]}")
    found = globals()[name] = getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


if "TORCHELASTIC_RUN_ID" in os.environ and not {"ETT_PLUGINS", "ETT_DISABLE"} & set(os.environ):
    # This process may be a restart: what it loads before it records tells where steps go on.
    from torchett.record.plugins import install_plugins

    install_plugins(("torchett.record.hooks.saves",))
