r"""train.py with torchett: recorded, and with its levers pulled (`diff -w train.py train_ett.py`).

For example, with a failure and a restart on the way:

    ett run -- torchrun --nproc-per-node 2 --max-restarts 1 \
        examples/dlrm/train_ett.py --kill-at 1:50
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader

import torchett as ett

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # examples/, where these are:
from common.batches import StepDataset, step_loader
from common.digest import weights_digest
from common.faults import Faults
from common.options import parse_options
from common.stock_checkpointer import StockCheckpointer
from common.world import World, join_process_group, set_up_device
from dlrm.data import BATCH_SIZES, Clicks, click_batch
from dlrm.model import DLRM, PRESETS


def build_model(args: Namespace, device: torch.device) -> tuple[nn.Module, Optimizer]:
    """The model and its optimizer."""
    torch.manual_seed(args.seed)
    if args.sharded:
        from dlrm.sharded import sharded

        from torchett.levers.communication.sharding_plans import cached_sharding_plans

        with cached_sharding_plans(f"{args.checkpoint_dir}-plans"):
            return sharded(args, PRESETS[args.preset], device)
    with device:
        model = DLRM(PRESETS[args.preset])
    return model, AdamW(model.parameters(), lr=args.lr, fused=True)


def parallel(args: Namespace, world: World, model: nn.Module) -> nn.Module:
    """The model's parallel and compiled form."""
    if args.sharded:
        return model  # it is both already
    torch._dynamo.config.optimize_ddp = False  # whole graphs: a restart finds them in the cache
    runner = DistributedDataParallel(model) if world.size > 1 else model
    return torch.compile(runner) if args.compile else runner


def build_dataset(args: Namespace, world: World) -> StepDataset[Clicks]:
    """This rank's data."""
    config = PRESETS[args.preset]
    make_batch = partial(
        click_batch,
        dense_features=config.dense_features,
        rows=config.rows,
        batch_size=args.batch_size or BATCH_SIZES[args.preset],
    )
    slow = {"warmup_s": args.data_warmup, "delay_s": args.data_delay}
    return StepDataset(make_batch, seed=args.seed, rank=world.rank, **slow)


def build_loader(
    args: Namespace, world: World, device: torch.device, steps: range
) -> DataLoader[Clicks]:
    """This rank's batches of `steps`."""
    return step_loader(build_dataset(args, world), steps, workers=args.num_workers, device=device)


def first_batch(args: Namespace, world: World) -> Clicks:
    """A batch of the right shape that waits for no data service."""
    dataset = build_dataset(args, world)
    return dataset.make_batch(torch.Generator().manual_seed(0))


def loss_of(runner: nn.Module, batch: Clicks, device: torch.device) -> Tensor:
    """The loss of the batch."""
    dense, ids, offsets, labels = (part.to(device, non_blocking=True) for part in batch)
    return binary_cross_entropy_with_logits(runner(dense, ids, offsets), labels)


def main() -> None:
    ett.init()  # what came before, from the start of the process on, counts as imports
    args = parse_options("dlrm", PRESETS)
    world = World.from_env()
    faults = Faults(args.faults, world, args.checkpoint_dir)
    args.data_warmup += faults.data_delay_s
    every = "auto" if args.without.isdisjoint(("checkpoints", "interval")) else args.save_every
    saver = StockCheckpointer if "checkpoints" in args.without else ett.Checkpointer
    checkpoints = saver(args.checkpoint_dir, every, mtbf_s=args.mtbf)  # begins to read the newest
    expected = checkpoints.expected_step()  # so that the loader can begin before there is a model
    plan = ett.Plan(seed=args.seed)

    @plan.stage("device_init", runs="main")
    def device() -> torch.device:
        return set_up_device(world)

    @plan.stage("preproc_creation", runs="main", after=[device])  # forks before threads are busy
    def loading(device: torch.device) -> Iterator[Clicks]:
        return iter(build_loader(args, world, device, range(expected, args.steps)))

    @plan.stage("process_group_init", runs="main", after=[device])
    def group(device: torch.device) -> None:
        join_process_group(world, device)

    warms = args.compile and not args.sharded and "fast_batch" not in args.without

    @plan.stage("get_first_batch_data", after=[loading])
    def fast(loading: object) -> Clicks | None:
        return first_batch(args, world) if warms else None

    needed = [device, loading, group] if args.sharded else [device, loading]

    @plan.stage("train_module_creation", after=needed)
    def built(device: torch.device, *_: object) -> tuple[nn.Module, Optimizer]:
        return build_model(args, device)

    ready = plan.run(overlap="plan" not in args.without)
    device, batches, (model, optimizer) = ready.device, ready.loading, ready.built
    with ett.stage("train_module_creation"):
        runner = parallel(args, world, model)
    warm = None
    if warms:
        warm = ett.warm_up(runner, partial(loss_of, device=device), fast_batch=ready.fast)
    state = {"model": model, "optimizer": optimizer}
    first_step = checkpoints.restore(state)
    if first_step != expected:  # the newest checkpoint was damaged
        if warm is not None:
            warm.join()  # nothing is forked beside a compile
        batches = iter(build_loader(args, world, device, range(first_step, args.steps)))
    faults.in_start_up()
    if world.rank == 0:
        print(f"at step {first_step} of {args.steps} on {world.size} × {device.type}", flush=True)

    batches = batches if warm is None else warm.then(batches)
    for step, batch in enumerate(ett.steps(batches, start=first_step), start=first_step):
        faults.at_step(step)
        loss = loss_of(runner, batch, device)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if world.rank == 0 and step % args.log_every == 0:
            print(f"step {step} loss {loss.item():.7f}", flush=True)
        checkpoints.step(step, state)

    checkpoints.close()  # the last step is safe
    if args.publish:
        recipe = f"{Path(__file__).with_name('publishing.py')}:{args.preset}"
        in_trainer = args.publish == "in-trainer"
        ett.publish(recipe, checkpoints, name=f"dlrm-{args.preset}", in_trainer=in_trainer)
    if args.digest and (world.rank == 0 or args.sharded):
        digest = weights_digest(model)
        if world.rank == 0:
            print(f"digest {digest}", flush=True)
    if world.size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
