"""Train a GPT with stock PyTorch: DDP, torch.compile, asynchronous checkpoints, exact resume.

For example, with a failure and a restart on the way:

    torchrun --nproc-per-node 2 --max-restarts 3 examples/gpt/train.py --kill-at 1:50
"""

import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # examples/, where these are:
from common.batches import StepDataset, step_loader
from common.checkpoints import Checkpoints
from common.digest import weights_digest
from common.faults import Faults
from common.options import parse_options
from common.world import World, join_process_group, set_up_device
from gpt.data import BATCH_SIZES, token_batch
from gpt.model import GPT, PRESETS


def build_model(args: Namespace, device: torch.device) -> tuple[GPT, AdamW]:
    """The model and its optimizer."""
    torch.manual_seed(args.seed)
    with device:
        model = GPT(PRESETS[args.preset])
    return model, AdamW(model.parameters(), lr=args.lr, fused=True)


def parallel(args: Namespace, world: World, model: GPT) -> nn.Module:
    """The model's parallel and compiled form."""
    torch._dynamo.config.optimize_ddp = False  # whole graphs: a restart finds them in the cache
    runner = DistributedDataParallel(model) if world.size > 1 else model
    return torch.compile(runner) if args.compile else runner


def build_dataset(args: Namespace, world: World) -> StepDataset[tuple[Tensor, Tensor]]:
    """This rank's data."""
    config = PRESETS[args.preset]
    make_batch = partial(
        token_batch,
        vocab_size=config.vocab_size,
        block_size=config.block_size,
        batch_size=args.batch_size or BATCH_SIZES[args.preset],
    )
    slow = {"warmup_s": args.data_warmup, "delay_s": args.data_delay}
    return StepDataset(make_batch, seed=args.seed, rank=world.rank, **slow)


def build_loader(
    args: Namespace, world: World, device: torch.device, steps: range
) -> DataLoader[tuple[Tensor, Tensor]]:
    """This rank's batches of `steps`."""
    return step_loader(build_dataset(args, world), steps, workers=args.num_workers, device=device)


def loss_of(runner: nn.Module, batch: tuple[Tensor, Tensor], device: torch.device) -> Tensor:
    """The loss of the batch."""
    tokens, targets = (part.to(device, non_blocking=True) for part in batch)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        return runner(tokens, targets)


def main() -> None:
    args = parse_options("gpt", PRESETS)
    world = World.from_env()
    faults = Faults(args.faults, world, args.checkpoint_dir)
    args.data_warmup += faults.data_delay_s
    device = set_up_device(world)
    join_process_group(world, device)
    model, optimizer = build_model(args, device)
    runner = parallel(args, world, model)
    checkpoints = Checkpoints(args.checkpoint_dir, model, optimizer)
    first_step = checkpoints.restore()
    loader = build_loader(args, world, device, range(first_step, args.steps))
    faults.in_start_up()
    if world.rank == 0:
        print(f"at step {first_step} of {args.steps} on {world.size} × {device.type}", flush=True)

    for step, batch in enumerate(loader, start=first_step):
        faults.at_step(step)
        loss = loss_of(runner, batch, device)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if world.rank == 0 and step % args.log_every == 0:
            print(f"step {step} loss {loss.item():.7f}", flush=True)
        if args.save_every and (step + 1) % args.save_every == 0 and step + 1 < args.steps:
            checkpoints.save(step)

    if first_step < args.steps:
        checkpoints.save_final(args.steps - 1)
    if args.digest and world.rank == 0:
        print(f"digest {weights_digest(model)}", flush=True)
    if world.size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
