"""A Lightning Trainer whose every bit depends on its whole past, as a script.

python lightning_trainer.py FOLDER             one of two ranks; it prints the digest of the end
python lightning_trainer.py FOLDER kill 8      the same, killed in that step of its first life
python lightning_trainer.py FOLDER notice 7    one process, which is sent SIGTERM in that step
"""

import hashlib
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from torchett.levers.checkpoint.frameworks.lightning import LightningCheckpoints

torch.set_num_threads(1)
warnings.filterwarnings("ignore")
EPOCHS = 3


class Data(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(4, generator=torch.Generator().manual_seed(index))


class Model(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, loader: type = torch.utils.data.DataLoader) -> None:
        super().__init__()
        self.loader = loader
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 16),
            torch.nn.BatchNorm1d(16),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(16, 1),
        )

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self.layers(batch).square().mean()

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("val", self.layers(batch).square().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        every_step = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": every_step, "interval": "step"},
        }

    def train_dataloader(self) -> Any:
        return self.loader(Data(), batch_size=2, shuffle=True)

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Data(), batch_size=8)


class TwoOptimizers(Model):
    """Steps by itself, with an optimizer for each half; no batches are put together."""

    def training_step(self, batch: torch.Tensor, index: int) -> None:
        self.layers(batch).square().mean().backward()
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def configure_optimizers(self) -> Any:
        halves = (self.layers[:2], self.layers[2:])
        optimizers = [torch.optim.AdamW(half.parameters(), lr=1e-2) for half in halves]
        step_lr = torch.optim.lr_scheduler.StepLR
        return optimizers, [step_lr(one, 3, 0.9) for one in optimizers]

    @property
    def automatic_optimization(self) -> bool:
        return False


class Kill(pl.Callback):  # type: ignore[misc]
    """Does something in the middle of a step, once what was due before is whole."""

    def __init__(self, ours: LightningCheckpoints, before: int) -> None:
        self.ours, self.before = ours, before
        self.steps: list[tuple[int, int, int]] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        loop = trainer.fit_loop.epoch_loop
        now = (trainer.global_step, loop._batches_that_stepped, loop.total_batch_idx)
        self.steps.append((trainer.current_epoch, index, *now))  # type: ignore[arg-type]

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        settle(self.ours)
        if trainer.global_step == self.before:
            self.end()

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def settle(ours: LightningCheckpoints) -> None:
    met = ours.checkpointer._met
    if met is not None and met.snapshots.prepared:
        met.snapshots.wait()
        while met.tier is not None and not met.tier.is_settled_here:
            time.sleep(0.001)


def made(
    folder: Path,
    *,
    kill: int = -1,
    loader: type = torch.utils.data.DataLoader,
    module: type[Model] = Model,
    accumulate: int = 2,
    trainer: dict[str, Any] | None = None,
    watch: type[Kill] = Kill,
    **settings: Any,
) -> tuple[Any, Model, LightningCheckpoints, Kill]:
    """A Trainer of 3 epochs of 12 batches, 2 of which make an update; 2 validations an epoch."""
    pl.seed_everything(3, verbose=False)
    ours = LightningCheckpoints(
        folder / "c", **{"every": 1000, "snapshot_every": None, "upload": "thread"} | settings
    )
    seen = watch(ours, kill)
    found = pl.Trainer(
        callbacks=[ours, seen], max_epochs=EPOCHS, accumulate_grad_batches=accumulate,
        val_check_interval=6, accelerator="cpu", enable_checkpointing=False, logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        **(trainer or {}),
    )  # fmt: skip
    return found, module(loader), ours, seen


def digest(trainer: Any, model: Model) -> str:
    """Of everything that training depends on."""
    sha = hashlib.sha256()
    for _, tensor in sorted(model.state_dict().items()):
        sha.update(tensor.contiguous().numpy().tobytes())
    for optimizer in trainer.optimizers:
        for one in optimizer.state_dict()["state"].values():
            for name in sorted(one):
                sha.update(one[name].contiguous().numpy().tobytes())
        sha.update(repr(optimizer.param_groups[0]["lr"]).encode())
    sha.update(repr((trainer.current_epoch, trainer.global_step)).encode())
    sha.update(bytes(torch.get_rng_state().tolist()))
    return sha.hexdigest()


class Notice(Kill):
    """Is sent SIGTERM in the middle of a step."""

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        met = self.ours.checkpointer._met
        while met is not None and not met.preemption._notice.received():
            time.sleep(0.001)


def one_of_two_ranks(where: Path, before: int) -> None:
    died = where / f"died-{os.environ['RANK']}"
    if before >= 0 and not died.exists():
        where.mkdir(exist_ok=True)
        died.touch()
    else:
        before = -1
    trainer, model, ours, seen = made(
        where, kill=before, snapshot_every=3, trainer={"strategy": "ddp", "devices": 2}
    )
    trainer.fit(model)
    print("began at", seen.steps[0][2], "from", ours.checkpointer._restored_tier, flush=True)
    print(digest(trainer, model), flush=True)


if __name__ == "__main__":
    folder, how = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    if how == "notice":
        trainer, model, _, _ = made(folder, kill=int(sys.argv[3]), watch=Notice)
        trainer.fit(model)
    else:
        one_of_two_ranks(folder, int(sys.argv[3]) if how == "kill" else -1)
