"""train.py plus the lines that record where its time goes (`diff -w train.py train_ett.py`).

For example, with a failure and a restart on the way:

    torchrun --nproc-per-node 2 --max-restarts 3 examples/dlrm/train_ett.py --kill-at 1:50
"""

import sys
from argparse import Namespace
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.utils.data import DataLoader

import torchett as ett

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # examples/, where these are:
from common.batches import StepDataset, step_loader
from common.checkpoints import Checkpoints
from common.digest import weights_digest
from common.faults import Faults
from common.options import parse_options
from common.world import World, join_process_group, set_up_device
from dlrm.data import BATCH_SIZES, Clicks, click_batch
from dlrm.model import DLRM, PRESETS


def build_model(
    args: Namespace, world: World, device: torch.device
) -> tuple[DLRM, nn.Module, AdamW]:
    """The model, its parallel and compiled form, and its optimizer."""
    torch.manual_seed(args.seed)
    with device:
        model = DLRM(PRESETS[args.preset])
    runner = DistributedDataParallel(model) if world.size > 1 else model
    if args.compile:
        runner = torch.compile(runner)
    return model, runner, AdamW(model.parameters(), lr=args.lr, fused=True)


def build_loader(
    args: Namespace, world: World, device: torch.device, steps: range
) -> DataLoader[Clicks]:
    """This rank's batches of `steps`."""
    config = PRESETS[args.preset]
    make_batch = partial(
        click_batch,
        dense_features=config.dense_features,
        rows=config.rows,
        batch_size=args.batch_size or BATCH_SIZES[args.preset],
    )
    dataset = StepDataset(make_batch, seed=args.seed, rank=world.rank, warmup_s=args.data_warmup)
    return step_loader(dataset, steps, workers=args.num_workers, device=device)


def forward_backward(runner: nn.Module, batch: Clicks, device: torch.device) -> Tensor:
    """The loss of the batch; its gradients are left on the weights."""
    dense, ids, offsets, labels = (part.to(device, non_blocking=True) for part in batch)
    logits = runner(dense, ids, offsets)
    loss = binary_cross_entropy_with_logits(logits, labels)
    loss.backward()
    return loss.detach()


def main() -> None:
    ett.init()  # what came before, from the start of the process on, counts as imports
    args = parse_options("dlrm", PRESETS)
    world = World.from_env()
    faults = Faults(args.faults, world, args.checkpoint_dir)
    args.data_warmup += faults.data_delay_s
    with ett.stage("device_init"):
        device = set_up_device(world)
    with ett.stage("process_group_init"):
        join_process_group(world, device)
    with ett.stage("train_module_creation"):
        model, runner, optimizer = build_model(args, world, device)
    with ett.stage("checkpoint_restore"):
        checkpoints = Checkpoints(
            args.checkpoint_dir, model, optimizer, on_durable=ett.checkpoint_durable
        )
        first_step = checkpoints.restore()
    with ett.stage("preproc_creation"):
        loader = build_loader(args, world, device, range(first_step, args.steps))
    faults.in_start_up()
    if world.rank == 0:
        print(f"at step {first_step} of {args.steps} on {world.size} × {device.type}", flush=True)

    for step, batch in enumerate(ett.steps(loader, start=first_step), start=first_step):
        faults.at_step(step)
        # The first forward and backward compile: that is start-up, not training.
        compiles = args.compile and step == first_step
        with ett.stage("pt2_compile") if compiles else nullcontext():
            loss = forward_backward(runner, batch, device)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if world.rank == 0 and step % args.log_every == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if args.save_every and (step + 1) % args.save_every == 0 and step + 1 < args.steps:
            with ett.blocked("checkpoint_blocked"):
                checkpoints.save(step)

    if first_step < args.steps:
        with ett.blocked("final_checkpoint"):
            checkpoints.save_final(args.steps - 1)
    if args.digest and world.rank == 0:
        print(f"digest {weights_digest(model)}", flush=True)
    if world.size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
