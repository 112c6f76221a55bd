"""A checkpoint manager for torchtitan that saves and resumes by a Checkpointer.

    from torchett.levers.checkpoint.frameworks.torchtitan import CheckpointManager

    def llama3_8b_ett() -> Trainer.Config:
        config = llama3_8b()
        config.checkpoint = CheckpointManager.Config(enable=True, every="auto")
        return config

torchtitan builds it from its Config and calls load, save after each step, and close. What is kept
has the names torchtitan gives it, so that stages of a pipeline do not collide.
"""

import logging
from dataclasses import dataclass, fields
from typing import Any

import torch
from torchtitan.components import checkpointer as titan
from torchtitan.tools import filesystem

from torchett.levers.checkpoint.checkpointer import Checkpointer
from torchett.levers.checkpoint.state.per_rank import RandomState
from torchett.levers.checkpoint.stored.retention import Keep

log = logging.getLogger("torchett")


class CheckpointManager(titan.BaseCheckpointManager):  # type: ignore[misc]
    """What torchtitan's trainer calls; `checkpointer` is the Checkpointer behind it."""

    @dataclass(kw_only=True, slots=True)
    class Config(titan.BaseCheckpointManager.Config):  # type: ignore[misc]
        """torchtitan's own settings, and those of a Checkpointer."""

        every: str = "auto"
        """When to save: steps ("500"), seconds ("10m"), or "auto". `interval` does not count."""

        snapshot_every: str = "auto"
        """The same for snapshots that memory keeps when ranks are killed; "" for none."""

        remote: str | None = None
        """A second tier, to which checkpoints are flushed in the background."""

        mtbf_s: float | None = None
        """Seconds between failures, as far as they are known."""

    def __init__(
        self,
        config: Any,
        *,
        dataloader: Any,
        model_parts: list[Any],
        optimizers: Any,
        lr_schedulers: Any,
        states: dict[str, Any],
        sd_adapter: Any,
        base_folder: str = "",
    ) -> None:
        self.enable = config.enable
        if not self.enable:
            return
        self.save_future = None
        self.folder = filesystem.join(base_folder, config.folder)
        self._config, self._base_folder = config, base_folder
        self._parts: dict[str, Any] = {
            "dataloader": dataloader,
            "model_parts": model_parts,
            "optimizers": optimizers,
            "lr_schedulers": lr_schedulers,
            "sd_adapter": sd_adapter,
        }
        self.states = states
        self.states |= {
            titan.MODEL: titan.ModelWrapper(model_parts),
            titan.OPTIMIZER: Plain(optimizers),
            titan.LR_SCHEDULER: Plain(lr_schedulers),
            "generators": RandomState(),
        }
        if dataloader is not None:
            self.states[titan.DATALOADER] = dataloader
        every, snapshots = config.every, config.snapshot_every or None
        self.checkpointer = Checkpointer(
            self.folder,
            int(every) if every.isdigit() else every,
            Keep(last=config.keep_latest_k) if config.keep_latest_k else Keep(last=1, every=1),
            remote=config.remote,
            mtbf_s=config.mtbf_s,
            snapshot_every=int(snapshots) if snapshots and snapshots.isdigit() else snapshots,
        )
        self._is_over = False

    def _load(self, step: int = -1) -> bool:
        """Restore the newest state; before there is one, what the initial_load_… settings name."""
        if step != -1:
            raise ValueError(
                f"checkpoint.load_step={step}: a Checkpointer restores the newest checkpoint; to "
                "go back, move newer ones out of its folder"
            )
        skip = self._config.exclude_from_loading
        if self.checkpointer.restore(self.states, skip=skip):
            _draws_from_its_own(self._parts["dataloader"])
            return True
        if self._config.initial_load_path or self._config.initial_load_in_hf:
            return bool(self._theirs().load(-1))
        return False

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        """The state after `curr_step` updates is complete; whether it was the last."""
        if self._config.load_only:
            return False
        self.checkpointer.step(curr_step - 1, self.states)
        self._is_over = last_step
        if last_step and self._config.last_save_in_hf:
            self._theirs().save(curr_step, last_step=True)
        return last_step

    def _maybe_wait_for_staging(self) -> None:
        """Nothing: the optimizer's step waits for the copy by itself, where it has to."""

    def _wait_for_saving(self) -> None:
        """Nothing: `save_future` stays None."""

    def _close(self) -> None:
        if hasattr(self, "checkpointer"):
            self.checkpointer.close(final=self._is_over)

    def _theirs(self) -> Any:
        """torchtitan's manager, for what is no part of resuming: initial weights, an export."""
        theirs = titan.CheckpointManager.Config
        shared = {one.name for one in fields(titan.BaseCheckpointManager.Config)}
        values = {name: getattr(self._config, name) for name in shared}
        config = theirs(**values | {"folder": f"{self._config.folder}-export"})
        return config.build(states={}, base_folder=self._base_folder, **self._parts)


def _draws_from_its_own(dataloader: Any) -> None:
    """The loader's iterator, which is made next, leaves the restored generators as they are."""
    if isinstance(dataloader, torch.utils.data.DataLoader) and dataloader.generator is None:
        dataloader.generator = torch.Generator().manual_seed(torch.initial_seed())


class Plain:
    """A container of torchtitan's as nothing but its state, which is by the names of parameters.

    By itself one of optimizers would be taken for a single optimizer, and one of schedulers, which
    can be iterated over, for something that each rank has its own of.
    """

    def __init__(self, container: Any) -> None:
        self._container = container

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._container.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._container.load_state_dict(state)
