"""Lightning: a checkpoint of the Trainer's own when the hardware is taken away.

    from torchett.levers.checkpoint.preemption.lightning import SaveOnNotice
    Trainer(callbacks=[SaveOnNotice("checkpoints")], …)

It is saved as FOLDER/preempted.ckpt, which replaces the one before: give it to
`fit(ckpt_path=…)` if it is the newest.
"""

import os
import signal
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from torchett.levers.checkpoint.preemption.preemption import Preemption, prepare
from torchett.levers.checkpoint.store_coordinator import Ranks, meet
from torchett.record.api import checkpoint_durable, last_step

NAME = "preempted.ckpt"


class SaveOnNotice(Callback):  # type: ignore[misc]
    """Saves after the batch under way and ends the process."""

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / NAME
        prepare()  # loaders' workers that are forked from now on stay while this process saves
        self._ranks: Ranks | None = None
        self._preemption: Preemption | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._ranks = meet()
        self._preemption = Preemption(self._ranks)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._at_boundary(trainer)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        self._at_boundary(trainer)  # Lightning ends a validation at SIGTERM, too

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._preemption is not None and self._ranks is not None:
            self._preemption.close()
            self._ranks.close()
            self._preemption = None

    def _at_boundary(self, trainer: Any) -> None:
        step = trainer.global_step - 1
        if self._preemption is None or step < 0 or not self._preemption.due(step):
            return
        trainer.save_checkpoint(self._path)
        if trainer.is_global_zero:
            checkpoint_durable(step)
        by_sigterm = self._preemption.reason == signal.SIGTERM.name
        self._preemption.leave(step)
        if by_sigterm:  # Lightning handles it, and its own end takes seconds
            last_step(step)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
