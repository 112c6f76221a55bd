"""A Hugging Face Trainer that saves and resumes by a Checkpointer.

    from torchett.levers.checkpoint.frameworks.huggingface import TrainerCheckpoints

    trainer = Trainer(…)
    TrainerCheckpoints(trainer, "checkpoints/run-7", keep=3)
    trainer.train()

    train            a folder with `trainer_state.json` alone says which step to resume after
    on_train_begin   model, optimizer, scheduler and the Trainer's state are restored, in place
                     the Trainer skips the batches that were trained
    on_step_begin    of the first step: the generators are set. Later: the step before is saved

The state after a step is saved when the next one begins, because the Trainer logs and evaluates
after `on_step_end`, and a scheduler may step then.
"""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import TrainerCallback, TrainerState

from torchett.levers.checkpoint.checkpointer import Checkpointer
from torchett.levers.checkpoint.errors import CheckpointError
from torchett.levers.checkpoint.frameworks.generators import LateGenerators
from torchett.levers.checkpoint.stored.retention import Keep
from torchett.record.patches import calling, install_on

log = logging.getLogger("torchett")

_STATE_FILE = "trainer_state.json"
_PROGRESS = (
    *("global_step", "epoch", "num_input_tokens_seen", "total_flos", "log_history"),
    *("best_metric", "best_global_step", "best_model_checkpoint"),
)


class TrainerCheckpoints(TrainerCallback):  # type: ignore[misc]
    """Adds itself to a Trainer, so that `trainer.train()` resumes from the newest checkpoint.

    The arguments are those of `Checkpointer`, which is the attribute `checkpointer`.
    """

    def __init__(
        self,
        trainer: Any,
        where: "str | os.PathLike[str]",
        every: int | str = "auto",
        keep: int | Keep = 2,
        **settings: Any,
    ) -> None:
        _refuse(trainer)
        self.checkpointer = Checkpointer(where, every, keep, **settings)
        self._trainer = trainer
        self._generators = LateGenerators()
        self._progress = Progress(trainer)
        self._state: dict[str, Any] = {}
        self._marker: Path | None = None  # the folder that says which step to resume after
        self._expected = self._seen = 0  # in the Trainer's global_step
        self._is_over = False
        patched = [
            install_on(trainer, f"transformers.trainer:Trainer.{name}", calling(around))
            for name, around in (("_load_from_checkpoint", self._load), ("train", self._train))
        ]
        if None in patched:
            for one in filter(None, patched):
                one.remove()
            log.warning("torchett: the Trainer does not save to %s", where)
            return
        if str(getattr(trainer.args.save_strategy, "value", trainer.args.save_strategy)) != "no":
            log.info("torchett: save_strategy='no' keeps the Trainer from saving its own as well")
        trainer.add_callback(self)

    # What is called in place of the Trainer's own ---------------------------------------------

    def _train(
        self, plain: Callable[..., Any], resume: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """As `train`; what was given to resume from counts where there is no checkpoint yet."""
        resume = kwargs.pop("resume_from_checkpoint", resume)
        self._expected = self._newest()
        while self._expected:
            with TemporaryDirectory(prefix="ett-resume-") as folder:
                self._marker = Path(folder)
                self._write_marker(self._marker)
                try:
                    return plain(folder, *args, **kwargs)
                except _OtherStepError as other:  # the newest one is damaged
                    self._expected = other.step
                finally:
                    self._marker = None
        return plain(resume, *args, **kwargs)

    def _write_marker(self, folder: Path) -> None:
        """As much of a checkpoint of the Trainer's as it needs to know what to skip."""
        args = self._trainer.args
        told = TrainerState(global_step=self._expected, train_batch_size=args.train_batch_size)
        told.compute_steps(args, args.max_steps)
        told.save_to_json(str(folder / _STATE_FILE))

    def _load(self, plain: Callable[..., Any], folder: Any, *args: Any, **kwargs: Any) -> Any:
        """As `_load_from_checkpoint`; weights of ours are restored with all else, later."""
        if self._marker is not None and str(folder) == str(self._marker):
            return None
        return plain(folder, *args, **kwargs)

    def _newest(self) -> int:
        """The step after which training is expected to resume; the same on all ranks."""
        if self._is_over:
            return 0
        ranks = self.checkpointer._meet().ranks
        return int(ranks.gather(self.checkpointer.expected_step())[0])

    # Hooks -----------------------------------------------------------------------------------

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        **_: Any,
    ) -> None:
        if state.is_hyper_param_search:
            raise CheckpointError("a search trains several models: they need a folder each")
        self._state = {
            "model": model,
            "optimizer": getattr(optimizer, "optimizer", optimizer),  # accelerate wraps it
            "scheduler": lr_scheduler,
            "trainer": self._progress,
            "generators": self._generators,
        }
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        if scaler is not None:
            self._state["scaler"] = scaler
        first = 0 if self._is_over else self.checkpointer.restore(self._state)
        if first != self._expected:
            raise _OtherStepError(first)
        if first:
            state.compute_steps(args, state.max_steps)  # a share of all steps is known only now
        self._seen = state.global_step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self._generators.set_now():
            self._save(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._save(state)
        self._is_over = True
        self.checkpointer.close()

    def _save(self, state: Any) -> None:
        if self._seen < state.global_step <= state.max_steps:
            self._seen = state.global_step
            self.checkpointer.step(state.global_step - 1, self._state)


class Progress:
    """What the Trainer knows of its progress, as one value."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        now = self._trainer.state
        kept = {name: getattr(now, name) for name in _PROGRESS if hasattr(now, name)}
        return {"json": json.dumps(kept, default=_plain)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in json.loads(state["json"]).items():
            if hasattr(self._trainer.state, name):
                setattr(self._trainer.state, name, value)


def _plain(value: Any) -> float | str:
    """What was logged and JSON does not know: a number of numpy's or torch's, or its text."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return str(value)


def _refuse(trainer: Any) -> None:
    """ValueError where a Checkpointer cannot be right."""
    if getattr(trainer, "is_deepspeed_enabled", False):
        raise ValueError(
            "DeepSpeed keeps the optimizer's state in its engine, where a Checkpointer does not "
            "find it: use the Trainer's own checkpoints with DeepSpeed"
        )
    if getattr(trainer, "is_fsdp_enabled", False):
        plugin = trainer.accelerator.state.fsdp_plugin
        if getattr(plugin, "fsdp_version", 1) == 1:
            raise ValueError(
                "FSDP1 keeps the optimizer's state in flat shards of its own: use FSDP2 "
                '(fsdp_config={"version": 2}), or the Trainer\'s own checkpoints with FSDP1'
            )


class _OtherStepError(Exception):
    """Another step than the expected one was restored, so the Trainer has to begin again."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the checkpoint of step {step - 1} was restored instead")
        self.step = step
