"""What a standby imports ahead of this lever: see record/levers.py."""

from torchett.record.levers import Lever

LEVER = Lever(
    standby_imports=(
        "torchett.levers.checkpoint.checkpointer",
        "torchett.levers.checkpoint.restore.restore",
    )
)
