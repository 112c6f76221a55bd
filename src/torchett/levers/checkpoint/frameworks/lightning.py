"""A Lightning Trainer that saves and resumes by a Checkpointer.

    from torchett.levers.checkpoint.frameworks.lightning import LightningCheckpoints

    trainer = Trainer(callbacks=[LightningCheckpoints("checkpoints/run-7", keep=3)], …)
    trainer.fit(model)

It is a callback and no CheckpointIO, because Lightning calls a CheckpointIO on rank 0 alone, with a
state that is gathered there, and at a time that ModelCheckpoint chooses.

The state after a step is saved when the next batch begins, after the validation between the two.
"""

import logging
import os
from operator import attrgetter
from typing import Any

from lightning.pytorch.callbacks import Callback

from torchett.levers.checkpoint.checkpointer import Checkpointer
from torchett.levers.checkpoint.frameworks.generators import LateGenerators
from torchett.levers.checkpoint.frameworks.lightning_progress import Progress
from torchett.levers.checkpoint.state.per_rank import PerRank
from torchett.levers.checkpoint.stored.retention import Keep

log = logging.getLogger("torchett")

_PRIVATE = (  # of the Trainer, from Lightning's own code
    "_checkpoint_connector._loaded_checkpoint",
    "_signal_connector.teardown",
    "fit_loop._combined_loader",
    "fit_loop._data_fetcher",
    "fit_loop._load_from_state_dict",
)
_PARTITIONED = ("DeepSpeedStrategy", "FSDPStrategy")


class LightningCheckpoints(Callback):  # type: ignore[misc]
    """Saves while `fit` trains, and has `fit` resume after the newest checkpoint.

    The arguments are those of `Checkpointer`, which is the attribute `checkpointer`.
    """

    def __init__(
        self,
        where: "str | os.PathLike[str]",
        every: int | str = "auto",
        keep: int | Keep = 2,
        **settings: Any,
    ) -> None:
        self.checkpointer = Checkpointer(where, every, keep, **settings)
        self._generators = LateGenerators()
        self._progress = Progress()
        self._state: dict[str, Any] = {}
        self._seen = 0
        self._is_over = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        _refuse(trainer)
        for name in _PRIVATE:
            try:
                attrgetter(name)(trainer)
            except AttributeError:
                self._is_over = True
                log.warning("torchett: nothing is saved: this Lightning has no Trainer.%s", name)
                return

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Restore, in place: optimizers are made by now, loops have not begun."""
        if self._is_over:
            return
        self._state = {
            "model": pl_module,
            **{_name("optimizer", i): one for i, one in enumerate(trainer.optimizers)},
            **{
                _name("scheduler", i): one.scheduler
                for i, one in enumerate(trainer.lr_scheduler_configs)
            },
            "trainer": PerRank(self._progress),
            "generators": self._generators,
        }
        if self.checkpointer.restore(self._state):
            # What `fit(ckpt_path=…)` has loaded is older.
            trainer._checkpoint_connector._loaded_checkpoint.clear()
            self._progress.resumes(trainer)
        else:
            self._progress.begins(trainer)
        self._seen = _steps(trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._is_over:
            return
        self._progress.seeks()
        # Lightning's handler ends the loop before the save that the Checkpointer makes at SIGTERM.
        trainer._signal_connector.teardown()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if not self._is_over:
            self._progress.epoch_begins()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._progress.is_there():
            self._seen = _steps(trainer)
            self._generators.set_now()
        else:
            self._save(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._is_over:
            self._progress.batch_ends()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._progress.in_epoch = False

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._save(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit" and not self._is_over:
            self._is_over = True
            self.checkpointer.close()

    def _save(self, trainer: Any) -> None:
        """Save if an update was made since the last call: else gradients are being summed up."""
        steps = _steps(trainer)
        if steps > self._seen and not self._is_over:
            self._seen = steps
            self.checkpointer.step(steps - 1, self._state)


def _steps(trainer: Any) -> int:
    """Updates so far, whatever the number of optimizers: as the steps in the record."""
    loop = trainer.fit_loop.epoch_loop
    return int(getattr(loop, "_batches_that_stepped", trainer.global_step))


def _name(kind: str, number: int) -> str:
    return f"{kind}_{number}" if number else kind


def _refuse(trainer: Any) -> None:
    """ValueError where a Checkpointer cannot be right."""
    strategy = type(trainer.strategy).__name__
    if strategy in _PARTITIONED:
        raise ValueError(
            f"{strategy} keeps the optimizer's state in flat shards of its own: use "
            "ModelParallelStrategy (FSDP2), or ModelCheckpoint with this one"
        )
    if trainer.world_size > 1 and "RANK" not in os.environ:
        raise ValueError(
            "LightningCheckpoints needs to know its rank from the beginning: start the script "
            f"with torchrun --nproc-per-node {trainer.num_devices}"
        )
