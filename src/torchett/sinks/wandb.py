"""A run as an offline run of Weights & Biases; send it with `wandb sync DIR/wandb/…`."""

import os
from pathlib import Path

from torchett.ledger.ledger import Ledger
from torchett.model.errors import RunError
from torchett.sinks.scalars import Point, final


class WandB:
    """One offline run in a folder; WANDB_PROJECT and similar variables are used."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        try:
            import wandb
        except ImportError:
            raise RunError("wandb: not installed; pip install 'torchett[wandb]'") from None
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            dir=str(folder),
            mode="offline",
            name=ledger.job,
            project=os.environ.get("WANDB_PROJECT", "torchett"),
            config={"ranks": ledger.ranks},
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        self._run.define_metric("ett/*", step_metric="ett/job_seconds")

    def log(self, point: Point) -> None:
        beside = {"ett/job_seconds": point.at_s, "_timestamp": point.wall_s}
        self._run.log({**point.values, **beside}, commit=True)

    def close(self, ledger: Ledger) -> None:
        self._run.summary.update(final(ledger))
        self._run.finish()
