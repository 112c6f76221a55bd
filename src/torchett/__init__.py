"""torchett: every second of a PyTorch training job in exactly one account.

import torchett as ett

    ett.init()
    with ett.stage("train_module_creation"):
        model = ...
    for batch in ett.steps(loader):
        ...
"""

from torchett.record import blocked, checkpoint_durable, init, stage, step, steps

__all__ = ["blocked", "checkpoint_durable", "init", "stage", "step", "steps"]
__version__ = "0.1.0"
