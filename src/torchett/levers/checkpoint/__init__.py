"""Checkpoints that do not stall training, come when due, and are verified before loading."""

from typing import TYPE_CHECKING, Any

from torchett.levers.checkpoint.errors import CheckpointError, CorruptCheckpoint, StateMismatch

if TYPE_CHECKING:
    from torchett.levers.checkpoint.checkpointer import Checkpointer
    from torchett.levers.checkpoint.state.per_rank import PerRank, RandomState
    from torchett.levers.checkpoint.stored.retention import Keep

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
    """A name is imported when it is first used."""
    if name == "Checkpointer":
        from torchett.levers.checkpoint.checkpointer import Checkpointer

        return Checkpointer
    if name == "Keep":
        from torchett.levers.checkpoint.stored.retention import Keep

        return Keep
    if name in ("PerRank", "RandomState"):
        from torchett.levers.checkpoint.state import per_rank

        return getattr(per_rank, name)
    raise AttributeError(f"module 'torchett.levers.checkpoint' has no attribute '{name}'")
