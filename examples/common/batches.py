"""Synthetic data whose batch k on rank r is a pure function of (seed, k, r).

That is what makes a resume exact: a run that continues at step k asks for batch k, and gets the one
the first run would have got. There is no loader state to save.
"""

import time
import zlib
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

Batch = TypeVar("Batch", covariant=True)


class StepDataset(Dataset[Batch], Generic[Batch]):
    """Whole batches by step index: `dataset[k]` is the batch of step k.

    `warmup_s` stands for what real input pipelines do before their first batch (list files, open
    connections, fill shuffle buffers). Each process that reads the dataset pays it once.
    `delay_s` stands for storage that is slow: every batch pays it.
    """

    def __init__(
        self,
        make_batch: Callable[[torch.Generator], Batch],
        *,
        seed: int,
        rank: int,
        warmup_s: float = 0.0,
        delay_s: float = 0.0,
    ) -> None:
        self.make_batch = make_batch
        self.seed = seed
        self.rank = rank
        self.warmup_left_s = warmup_s
        self.delay_s = delay_s

    def __getitem__(self, step: int) -> Batch:
        time.sleep(self.warmup_left_s + self.delay_s)
        self.warmup_left_s = 0.0
        seed = zlib.crc32(f"{self.seed}/{step}/{self.rank}".encode())
        return self.make_batch(torch.Generator().manual_seed(seed))


def step_loader(
    dataset: StepDataset[Batch], steps: range, *, workers: int, device: torch.device
) -> DataLoader[Batch]:
    """A loader that yields the batches of `steps`, in order."""
    return DataLoader(
        dataset,
        batch_size=None,  # an item is a batch already
        sampler=steps,
        num_workers=workers,
        pin_memory=device.type == "cuda",
    )
