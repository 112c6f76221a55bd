"""Lightning: a small model with validation, gradient accumulation and checkpoints."""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from torchett.record.adapters.lightning import EttCallback


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(32, 1)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.net(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--resume")
    options = parser.parse_args()
    data = DataLoader(TensorDataset(torch.randn(64, 32)), batch_size=4)  # 16 batches
    saves = ModelCheckpoint(
        dirpath=options.folder, every_n_train_steps=4, save_top_k=-1, filename="{step}"
    )
    trainer = Trainer(
        max_epochs=options.epochs,
        accumulate_grad_batches=2,
        callbacks=[saves, EttCallback()],
        logger=False,
        accelerator="cpu",
        devices=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=options.folder,
    )
    trainer.fit(Net(), data, data, ckpt_path=options.resume)


if __name__ == "__main__":
    main()
