"""Hugging Face Trainer: a checkpoint of the Trainer's own when the hardware is taken away.

from torchett.levers.checkpoint.preemption.transformers import SaveOnNotice
Trainer(callbacks=[SaveOnNotice()], …)

SIGTERM ─ on_step_end: the ranks agree on a step ─ the Trainer saves ─ on_save: the end
"""

from typing import Any

from transformers import TrainerCallback

from torchett.levers.checkpoint.preemption.preemption import Preemption, prepare
from torchett.levers.checkpoint.store_coordinator import Ranks, meet
from torchett.record.api import checkpoint_durable


class SaveOnNotice(TrainerCallback):  # type: ignore[misc]
    """Saves after the step under way and ends the process as the signal would have."""

    def __init__(self) -> None:
        prepare()  # loaders' workers that are forked from now on stay while this process saves
        self._ranks: Ranks | None = None
        self._preemption: Preemption | None = None
        self._leaves_after: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._ranks = meet()
        self._preemption = Preemption(self._ranks)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step - 1
        if self._preemption is not None and self._preemption.due(step):
            self._leaves_after = step
            control.should_save = True
            control.should_evaluate = False  # there is no time for it

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = self._leaves_after
        if self._preemption is not None and step is not None:
            self._leaves_after = None
            if state.is_world_process_zero:
                checkpoint_durable(step)
            self._preemption.leave(step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._preemption is not None and self._ranks is not None:
            self._preemption.close()
            self._ranks.close()
            self._preemption = None
