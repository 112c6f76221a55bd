"""What runs inside a trainer. The standard library only; never raises into the loop."""

from torchett.record.api import blocked, checkpoint_durable, init, stage, step, steps

__all__ = ["blocked", "checkpoint_durable", "init", "stage", "step", "steps"]
