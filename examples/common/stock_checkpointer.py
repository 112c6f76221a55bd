"""Stock checkpoints behind the calls of `ett.Checkpointer`, to compare the two in one script."""

from pathlib import Path
from typing import Any

from common.checkpoints import Checkpoints, complete

import torchett as ett


class StockCheckpointer:
    """Saves every `every` steps by `dcp.async_save`."""

    def __init__(self, folder: Path, every: int, *, mtbf_s: float | None = None) -> None:
        self.folder, self.every = folder, every
        self.checkpoints: Checkpoints | None = None
        self.last_step = -1

    def expected_step(self) -> int:
        newest = complete(self.folder)[-1:]
        return int(newest[0].name.removeprefix("step-")) + 1 if newest else 0

    def restore(self, state: dict[str, Any]) -> int:
        with ett.stage("checkpoint_restore"):
            self.checkpoints = Checkpoints(
                self.folder, state["model"], state["optimizer"], on_durable=ett.checkpoint_durable
            )
            return self.checkpoints.restore()

    def step(self, step: int, state: dict[str, Any]) -> None:
        self.last_step = step
        if self.every and (step + 1) % self.every == 0:
            with ett.blocked("checkpoint_blocked"):
                self.checkpoints.save(step)

    def close(self) -> None:
        if self.last_step >= 0:
            with ett.blocked("final_checkpoint"):
                self.checkpoints.save_final(self.last_step)
