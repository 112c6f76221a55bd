"""TorchRec: a train pipeline that fetches ahead, watched."""

import argparse
import os

import torch
import torch.distributed as dist
from torchrec.distributed.train_pipeline import TrainPipelineBase

from torchett.record.adapters.torchrec import watched


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(32, 1)

    def forward(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.net(batch)
        return out.square().mean(), out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29555")
    dist.init_process_group(
        "gloo", rank=int(os.environ.get("RANK", 0)), world_size=int(os.environ.get("WORLD_SIZE", 1))
    )
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pipeline = watched(TrainPipelineBase(model, optimizer, torch.device("cpu")))
    batches = iter([torch.randn(8, 32) for _ in range(options.steps)])
    while True:
        try:
            pipeline.progress(batches)
        except StopIteration:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
