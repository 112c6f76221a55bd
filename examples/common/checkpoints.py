"""Checkpoints of model, optimizer and step with torch.distributed.checkpoint (DCP).

    checkpoints/gpt-tiny/
      step-00000039/          state after step 39, complete: its `.metadata` is there
      step-00000059/
      step-00000079.tmp/      still being written, or left by a run that was killed

A checkpoint is written under a `.tmp` name, which rank 0 takes off when every rank's bytes are on
disk. So nobody ever reads half a checkpoint, or one mixed with the remains of another.
"""

import os
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

KEEP = 2

# DCP says so at every save of a single process, which is a fine thing to be.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")


class Checkpoints:
    """The checkpoints of one job: restores the newest, saves while training goes on, keeps two.

    `on_durable(step)` is called on rank 0, from a background thread or the caller's, as soon as
    the state after `step` would survive a crash.
    """

    def __init__(
        self,
        folder: Path,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        on_durable: Callable[[int], None] = lambda step: None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.model = model
        self.optimizer = optimizer
        # TorchRec's: it and its optimizer name their parts, and say on which rank they lie.
        self.sharded = hasattr(model, "fused_optimizer")
        self.on_durable = on_durable
        # The upload thread runs collectives while training runs its own: on one group they would
        # interleave differently on each rank and deadlock.
        self.group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self.is_coordinator = self.group is None or dist.get_rank() == 0
        self.committer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="commit")
        self.pending: Future[None] | None = None

    def restore(self) -> int:
        """The step to train next: the one after the newest complete checkpoint, else 0."""
        newest = [self._newest_without_leftovers()] if self.is_coordinator else [None]
        if self.group is not None:
            dist.broadcast_object_list(newest, src=0, group=self.group)
        if newest[0] is None:
            return 0
        state = self._state(step=-1)
        dcp.load(state, checkpoint_id=newest[0], process_group=self.group)
        if self.sharded:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        else:
            set_state_dict(
                self.model,
                self.optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
        return state["step"] + 1

    def save(self, step: int) -> None:
        """Returns when the state after `step` is copied; writing goes on behind the training.

        Waits first for the previous checkpoint: at most one is under way.
        """
        self._wait()
        upload = dcp.async_save(
            self._state(step), checkpoint_id=self._draft(step), process_group=self.group
        )
        assert isinstance(upload, Future)  # a response object comes back from other stagers only
        self.pending = self.committer.submit(self._commit_after, upload, step)

    def save_final(self, step: int) -> None:
        """Returns when the state after `step` is on disk."""
        self._wait()
        dcp.save(self._state(step), checkpoint_id=self._draft(step), process_group=self.group)
        self._commit(step)

    def _wait(self) -> None:
        if self.pending is not None:
            self.pending.result()
            self.pending = None

    def _state(self, step: int) -> dict[str, Any]:
        if self.sharded:
            model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        else:
            model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": step}

    def _draft(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.tmp"

    def _commit_after(self, upload: Future[Any], step: int) -> None:
        upload.result()
        self._commit(step)

    def _commit(self, step: int) -> None:
        # DCP returns on rank 0 only after every rank has written its part.
        if not self.is_coordinator:
            return
        draft = self._draft(step)
        _sync_folder(draft)  # DCP syncs the files, not the folder that names them
        draft.rename(draft.with_suffix(""))
        _sync_folder(self.folder)
        self.on_durable(step)
        for old in complete(self.folder)[:-KEEP]:
            shutil.rmtree(old)

    def _newest_without_leftovers(self) -> Path | None:
        for leftover in self.folder.glob("step-*.tmp"):
            shutil.rmtree(leftover)
        return next(reversed(complete(self.folder)), None)


def complete(folder: Path) -> list[Path]:
    """The checkpoints there, oldest first."""
    return sorted(
        path
        for path in folder.glob("step-*")
        if path.suffix != ".tmp" and (path / ".metadata").exists()
    )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
