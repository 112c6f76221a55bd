"""A run as an offline run of Weights & Biases, to be sent with `wandb sync DIR/wandb/…`."""

import os
from pathlib import Path

from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.model.errors import RunError
from torchett.sinks.scalars import final, points


def write(ledger: Ledger, history: History, folder: Path) -> None:
    """Write the run into the folder; WANDB_PROJECT and the like say where it belongs."""
    try:
        import wandb
    except ImportError:
        raise RunError("wandb: not installed; pip install 'torchett[wandb]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        dir=str(folder),
        mode="offline",
        name=ledger.job,
        project=os.environ.get("WANDB_PROJECT", "torchett"),
        config={"ranks": ledger.ranks, "attempts": len(ledger.attempts)},
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
    )
    run.define_metric("ett/*", step_metric="ett/job_seconds")
    for point in points(ledger, history):
        run.log(
            {**point.values, "ett/job_seconds": point.at_s, "_timestamp": point.wall_s}, commit=True
        )
    run.summary.update(final(ledger))
    run.finish()
