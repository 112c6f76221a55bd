"""Lightning: steps, waits, validation and checkpoints of a Trainer.

    from torchett.record.adapters.lightning import EttCallback
    Trainer(callbacks=[EttCallback()])

Under `ett run` the callback is added by itself, through the entry point group
`lightning.pytorch.callbacks_factory`. Works with `lightning` and with `pytorch_lightning`.

    on_train_batch_end ═ data_wait ═ on_train_batch_start ── a step, over as many batches as are
                                     accumulated, less the waits between ── on_train_batch_end
"""

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchett.record import api
from torchett.record.adapters.phases import OpenPhases, harmless, open_record
from torchett.record.patches import install_on

if TYPE_CHECKING:
    EttCallback: Any


class CallbackHooks:
    """The hooks; mixed into whichever package's Callback is in use."""

    def __init__(self) -> None:
        super().__init__()
        self.phases = OpenPhases()
        self._steps_before = -1
        self._saves: Any = None

    @harmless
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit" or self._saves is trainer:
            return
        if next(c for c in trainer.callbacks if isinstance(c, CallbackHooks)) is not self:
            self.phases.off = True  # the user's own callback, and the one that `ett run` adds
            return
        open_record()
        self._saves = trainer

        def make(save: Callable[..., Any]) -> Callable[..., Any]:
            def saving(*args: Any, **kwargs: Any) -> Any:
                if self.phases.off:
                    return save(*args, **kwargs)
                with api.blocked("checkpoint_blocked"):
                    done = save(*args, **kwargs)
                self._saved(trainer)
                return done

            return saving

        install_on(trainer, "lightning.pytorch.trainer.trainer:Trainer.save_checkpoint", make)

    @harmless
    def _saved(self, trainer: Any) -> None:
        """A checkpoint that an asynchronous plugin still writes is not durable yet."""
        if "Async" not in type(trainer.strategy.checkpoint_io).__name__:
            step = _index(trainer) - (0 if self._in_batch(trainer) else 1)
            if step >= 0:
                api.checkpoint_durable(step)

    def _in_batch(self, trainer: Any) -> bool:
        """Whether this is a callback at a batch's end, where its step is not counted yet."""
        return bool(self._steps_before >= 0 and trainer.global_step > self._steps_before)

    @harmless
    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self.phases.begin("pre_train")

    @harmless
    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        self.phases.end("pre_train")

    @harmless
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.phases.idle()

    @harmless
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, index: int) -> None:
        self._steps_before = trainer.global_step
        self.phases.step_begins(_index(trainer))

    @harmless
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        if trainer.global_step > self._steps_before:
            self.phases.step_ends()
        self.phases.idle()

    @harmless
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.phases.busy()
            self.phases.begin("evaluation")

    @harmless
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._steps_before = -1
        self.phases.end("evaluation")
        self.phases.idle()

    @harmless
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.phases.busy()

    @harmless
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.phases.busy()
        self.phases.end_all()

    @harmless
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.phases.step_is_void()
        self.phases.end_all()


def _index(trainer: Any) -> int:
    """The number of the step that runs: batches that stepped so far, whatever the optimizers."""
    loop = trainer.fit_loop.epoch_loop
    return int(getattr(loop, "_batches_that_stepped", trainer.global_step))


def callbacks() -> list[Any]:
    """For Lightning's entry points: the callback, if this process runs under `ett run`."""
    if "ETT_RUN" not in os.environ:
        return []
    return [__getattr__("EttCallback")()]


def pytorch_lightning_callbacks() -> list[Any]:
    """The same, for the package `pytorch_lightning`."""
    if "ETT_RUN" not in os.environ:
        return []
    from pytorch_lightning.callbacks import Callback

    return [_class(Callback)()]


@functools.cache
def _class(base: type) -> type:
    return type(
        "EttCallback",
        (CallbackHooks, base),
        {"__doc__": CallbackHooks.__doc__, "__module__": __name__},
    )


def __getattr__(name: str) -> Any:
    if name != "EttCallback":
        raise AttributeError(name)
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        from pytorch_lightning.callbacks import Callback
    return _class(Callback)
