"""A job of Ray Train: two workers, its own process group, DDP and loader sharding."""

import sys
from pathlib import Path

import ray
import torch
from ray import train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model


def loop(config):
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(256, 256) for _ in range(6)]
    model = prepare_model(torch.nn.Sequential(*layers, torch.nn.Linear(256, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(4096, 256), torch.randn(4096, 1))
    loader = prepare_data_loader(DataLoader(data, batch_size=64))
    steps = 0
    while steps < config["steps"]:
        for x, y in loader:
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
            steps += 1
            if steps == config["steps"]:
                break
    train.report({"steps": steps})
    if train.get_context().get_world_rank() == 0:
        Path(config["told"]).write_text(str(steps))


if __name__ == "__main__":
    steps = 4000 if sys.argv[1] == "long" else 50
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        loop,
        train_loop_config={"steps": steps, "told": str(Path("told").absolute())},
        scaling_config=ScalingConfig(num_workers=2),
    )
    trainer.fit()
    print(f"steps: {Path('told').read_text()}")
