"""DeepSpeed: an engine with gradient accumulation and checkpoints (DS_ACCELERATOR=cpu here)."""

import argparse
import os

import deepspeed
import torch

from torchett.record.adapters.deepspeed import watched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="checkpoints")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    alone |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29556"}
    os.environ.update({key: os.environ.get(key, value) for key, value in alone.items()})
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
    deepspeed.init_distributed("gloo")
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine = watched(engine)
    engine.load_checkpoint(options.folder)
    while engine.global_steps < options.steps:
        loss = engine(torch.randn(4, 32)).square().mean()
        engine.backward(loss)
        engine.step()
        if engine.is_gradient_accumulation_boundary() and engine.global_steps % 5 == 0:
            engine.save_checkpoint(options.folder)


if __name__ == "__main__":
    main()
