"""Accelerate: a loop that logs every step and saves its state."""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from torchett.record.adapters.accelerate import EttTracker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    tracker = EttTracker()
    accelerator = Accelerator(cpu=True, log_with=[tracker])
    tracker.watch(accelerator)
    accelerator.init_trackers("example")
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = DataLoader(TensorDataset(torch.randn(4 * options.steps, 32)), batch_size=4)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for step, (batch,) in enumerate(data):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"loss": loss.item()}, step=step)
        if step % 5 == 4:
            accelerator.save_state(f"{options.folder}/{step}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
