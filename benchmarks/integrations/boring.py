"""Lightning's own BoringModel, trained by its Trainer with DDP on two processes."""

import sys

import lightning.pytorch as pl
from lightning.pytorch.demos.boring_classes import BoringModel

if __name__ == "__main__":
    steps = 14000 if sys.argv[1] == "long" else 40
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=steps, max_epochs=-1,
        enable_progress_bar=False, logger=False, check_val_every_n_epoch=20,
    )  # fmt: skip
    trainer.fit(BoringModel())
    if trainer.is_global_zero:
        print(f"steps: {trainer.global_step}")
