"""Checkpoints that do not stall training, come when due, and are verified before loading."""

from typing import TYPE_CHECKING, Any

from torchett.checkpoint.errors import CheckpointError, CorruptCheckpoint, StateMismatch
from torchett.checkpoint.retention import Keep

if TYPE_CHECKING:
    from torchett.checkpoint.checkpointer import Checkpointer
    from torchett.checkpoint.per_rank import PerRank, RandomState

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "CorruptCheckpoint",
    "Keep",
    "PerRank",
    "RandomState",
    "StateMismatch",
]


def __getattr__(name: str) -> Any:
    """What only a trainer needs is imported when it is first used."""
    if name == "Checkpointer":
        from torchett.checkpoint.checkpointer import Checkpointer

        return Checkpointer
    if name in ("PerRank", "RandomState"):
        from torchett.checkpoint import per_rank

        return getattr(per_rank, name)
    raise AttributeError(f"module 'torchett.checkpoint' has no attribute '{name}'")
