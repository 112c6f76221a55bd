"""Ways to shard a job, saved on n ranks and restored on m: shardings.py FOLDER NAME:N:M …

Each job trains some steps and saves. Jobs of other sizes, with other weights at first, restore.
Every tensor, setting, generator and position must be what it was when it was saved, or the job is
refused in one line.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["ETT_DISABLE"] = "1"
import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parent))
from world import ranks  # noqa: E402

from torchett.levers.checkpoint import Checkpointer, RandomState, StateMismatch  # noqa: E402

STEPS = 3
State = dict[str, Any]


class Stream:
    """Data that each rank reads its own part of; the parts are divided anew for other ranks."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> int:
        self.position += 1
        return self.position

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]

    def load_state_dicts(self, states: list[dict[str, Any]], rank: int) -> None:
        self.position = sum(state["position"] for state in states)


class Job:
    """A state, and a step that changes all of it."""

    def __init__(self, state: State, forward: "Callable[[int], torch.Tensor] | None") -> None:
        self.state, self._forward = state, forward
        state["rng"] = RandomState()
        if "loader" not in state:
            state["loader"] = Stream()

    def step(self, number: int) -> None:
        optimizers = [o for o in self.state.values() if isinstance(o, torch.optim.Optimizer)]
        if self._forward is not None:
            self._forward(number).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
        next(iter(self.state["loader"]))
        torch.rand(2), np.random.rand(2), random.random()


def batch(number: int, rows: int = 12, width: int = 12) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(number))


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    """Two groups, as weight decay has it."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-2)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 12))


def mesh(*sizes: int, names: tuple[str, ...] = ()) -> Any:
    return torch.distributed.device_mesh.init_device_mesh(
        "cpu", sizes, mesh_dim_names=names or None
    )


# Shardings ---------------------------------------------------------------------------------------


def fsdp2(rank: int, size: int) -> Job:
    from torch.distributed.fsdp import fully_shard

    model = mlp()
    fully_shard(model[0], mesh=mesh(size))
    fully_shard(model, mesh=mesh(size))
    return Job(
        {"model": model, "optimizer": adamw(model)}, lambda n: model(batch(n + rank)).square().sum()
    )


def _tensor_parallel(model: nn.Module, on: Any) -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    parallelize_module(model, on, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def tp(rank: int, size: int) -> Job:
    model = mlp()
    _tensor_parallel(model, mesh(size))
    return Job(
        {"model": model, "optimizer": adamw(model)}, lambda n: model(batch(n)).square().sum()
    )


def fsdp2_tp(rank: int, size: int) -> Job:
    from torch.distributed.fsdp import fully_shard

    both = mesh(*{1: (1, 1), 2: (1, 2), 3: (3, 1), 4: (2, 2)}[size], names=("dp", "tp"))
    model = mlp()
    _tensor_parallel(model, both["tp"])
    fully_shard(model, mesh=both["dp"])
    part = both["dp"].get_local_rank()
    return Job(
        {"model": model, "optimizer": adamw(model)}, lambda n: model(batch(n + part)).square().sum()
    )


def tp_ddp(rank: int, size: int) -> Job:
    """TP on a part of the mesh; the parts hold the same, without a DTensor that says so."""
    both = mesh(*{1: (1, 1), 2: (2, 1), 3: (3, 1), 4: (2, 2)}[size], names=("dp", "tp"))
    model = mlp()
    _tensor_parallel(model, both["tp"])
    return Job(
        {"model": model, "optimizer": adamw(model)}, lambda n: model(batch(n)).square().sum()
    )


def hsdp(rank: int, size: int) -> Job:
    from torch.distributed.fsdp import fully_shard

    both = mesh(*{1: (1, 1), 2: (2, 1), 3: (3, 1), 4: (2, 2)}[size], names=("replicate", "shard"))
    model = mlp()
    fully_shard(model, mesh=both)
    return Job(
        {"model": model, "optimizer": adamw(model)}, lambda n: model(batch(n + rank)).square().sum()
    )


def pipeline(rank: int, size: int) -> Job:
    """Six stages, several a rank; each rank names its own."""
    stages = nn.ModuleDict({f"stage{s}": nn.Linear(12, 12) for s in range(rank, 6, size)})
    return Job(
        {"model": stages, "optimizer": adamw(stages)},
        lambda n: sum(one(batch(n + int(name[5:]))).square().sum() for name, one in stages.items()),
    )


def pipeline_keys(rank: int, size: int) -> Job:
    """Stages under keys of their own, and an optimizer for each."""
    stages = {s: nn.Linear(12, 12) for s in range(rank, 4, size)}
    state: State = {f"stage{s}": one for s, one in stages.items()}
    state |= {f"optimizer{s}": adamw(one) for s, one in stages.items()}
    return Job(state, lambda n: sum(one(batch(n + s)).square().sum() for s, one in stages.items()))


def pipeline_fsdp2(rank: int, size: int) -> Job:
    """Two stages; with four ranks each is sharded over two."""
    from torch.distributed.fsdp import fully_shard

    both = mesh(*{1: (1, 1), 2: (2, 1), 3: (1, 3), 4: (2, 2)}[size], names=("pp", "dp"))
    here = both["pp"].get_local_rank()
    stages = nn.ModuleDict({f"stage{s}": nn.Linear(12, 12) for s in range(here, 2, both.size(0))})
    for one in stages.values():
        fully_shard(one, mesh=both["dp"])
    return Job(
        {"model": stages, "optimizer": adamw(stages)},
        lambda n: sum(one(batch(n + int(name[5:]))).square().sum() for name, one in stages.items()),
    )


def ddp(rank: int, size: int) -> Job:
    """Buffers of a batch norm differ between ranks: rank 0's are saved, as DDP broadcasts them."""
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.Linear(24, 12))
    )
    return Job(
        {"model": model, "optimizer": adamw(model)}, lambda n: model(batch(n + rank)).square().sum()
    )


def ddp_large(rank: int, size: int) -> Job:
    """Tensors that are large enough to be divided between the ranks of a node."""
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(
            nn.Linear(12, 2000), nn.BatchNorm1d(2000), nn.Linear(2000, 12), nn.Linear(12, 1500)
        )
    )
    return Job(
        {"model": model, "optimizer": adamw(model)}, lambda n: model(batch(n + rank)).square().sum()
    )


def sharded_tensor(rank: int, size: int) -> Job:
    """Rows of a table, as TorchRec shards them."""
    from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards

    rows = 12 // size
    values = torch.randn(12, 5)[rank * rows : (rank + 1) * rows].clone()
    shard = Shard.from_tensor_and_offsets(values, shard_offsets=[rank * rows, 0], rank=rank)
    return Job({"table": init_from_local_shards([shard], 12, 5)}, None)


def float8(rank: int, size: int) -> Job:
    model = nn.Module()
    model.register_buffer("scale", torch.randn(4, 4).to(torch.float8_e4m3fn))
    model.register_buffer("low", torch.randn(7).to(torch.bfloat16))
    model.linear = nn.Linear(12, 12).to(torch.bfloat16)
    return Job(
        {"model": model, "optimizer": adamw(model)},
        lambda n: model.linear(batch(n).bfloat16()).square().sum(),
    )


def ema(rank: int, size: int) -> Job:
    """Copies of the weights, as a module and as a dict of tensors."""
    job = fsdp2(rank, size)
    model = job.state["model"]
    average = nn.ModuleDict({"copy": mlp()})
    job.state["average"] = average
    job.state["more"] = {"weights": {n: p.detach().clone() for n, p in model.named_parameters()}}
    before = job._forward
    assert before is not None

    def forward(n: int) -> torch.Tensor:
        with torch.no_grad():
            for p in [*average.parameters(), *job.state["more"]["weights"].values()]:
                p.mul_(0.9)
        return before(n)

    job._forward = forward
    return job


class Tied(nn.Module):
    """A frozen weight, one that is used twice, and one that never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.last, self.unused = (nn.Linear(12, 12) for _ in range(4))
        self.last.weight = self.first.weight
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.frozen(self.first(x)))


def tied(rank: int, size: int) -> Job:
    from torch.distributed.fsdp import fully_shard

    model = Tied()
    fully_shard(model, mesh=mesh(size))
    return Job(
        {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2)},
        lambda n: model(batch(n + rank)).square().sum(),
    )


def sgd(rank: int, size: int) -> Job:
    """An optimizer without a state."""
    from torch.distributed.fsdp import fully_shard

    model = mlp()
    fully_shard(model, mesh=mesh(size))
    return Job(
        {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)},
        lambda n: model(batch(n + rank)).square().sum(),
    )


def zero(rank: int, size: int) -> Job:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = mlp()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    return Job({"model": model, "optimizer": optimizer}, lambda n: model(batch(n)).square().sum())


def torchdata(rank: int, size: int) -> Job:
    """A StatefulDataLoader: exact on the same number of ranks, refused on another."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    model = mlp()
    loader = StatefulDataLoader(list(range(100)), batch_size=4, shuffle=True)
    return Job(
        {"model": model, "optimizer": adamw(model), "loader": loader},
        lambda n: model(batch(n)).square().sum(),
    )


# Refused when they are saved ---------------------------------------------------------------------


def fsdp1(rank: int, size: int) -> Job:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(mlp(), device_id=torch.device("cpu"))
    return Job(
        {"model": model, "optimizer": adamw(model)}, lambda n: model(batch(n)).square().sum()
    )


def local_names(rank: int, size: int) -> Job:
    """Stages that name their weights alike."""
    stage = nn.Linear(12, 12)
    return Job(
        {"model": stage, "optimizer": adamw(stage)}, lambda n: stage(batch(n + rank)).square().sum()
    )


def local_names_fsdp2(rank: int, size: int) -> Job:
    """The same, where each stage is sharded over ranks of its own."""
    from torch.distributed.fsdp import fully_shard

    both = mesh(*{2: (2, 1), 4: (2, 2)}[size], names=("pp", "dp"))
    stage, here = nn.Linear(12, 12), both["pp"].get_local_rank()
    fully_shard(stage, mesh=both["dp"])
    return Job(
        {"model": stage, "optimizer": adamw(stage)}, lambda n: stage(batch(n + here)).square().sum()
    )


def unnamed(rank: int, size: int) -> Job:
    """An optimizer whose parameters are in no module of the state."""
    stage = nn.Linear(12, 12)
    return Job({"optimizer": adamw(stage)}, lambda n: stage(batch(n + rank)).square().sum())


def subclass(rank: int, size: int) -> Job:
    from torch.testing._internal.two_tensor import TwoTensor

    return Job({"weights": {"w": TwoTensor(torch.ones(3), torch.zeros(3))}}, None)


def listed(rank: int, size: int) -> Job:
    return Job({"model": [mlp(), mlp()]}, None)


REFUSED = {
    "fsdp1": "FSDP1",
    "local_names": "ranks hold different tensors under the same name: model.weight",
    "local_names_fsdp2": "ranks hold different tensors under the same name",
    "unnamed": "ranks hold different tensors under the same name: optimizer.state.0",
    "subclass": "is a TwoTensor",
    "listed": "give each a key of its own",
}
SHARDINGS: dict[str, Callable[[int, int], Job]] = {
    made.__name__: made
    for made in (
        fsdp2, tp, fsdp2_tp, tp_ddp, hsdp, pipeline, pipeline_keys, pipeline_fsdp2, ddp,
        ddp_large, sharded_tensor, float8, ema, tied, sgd, zero, torchdata,
        fsdp1, local_names, local_names_fsdp2, unnamed, subclass, listed,
    )
}  # fmt: skip


# What a state is, whoever holds it ---------------------------------------------------------------


def whole(state: State) -> dict[str, Any]:
    """Name → all of a tensor, or a setting; without what each rank has its own of."""
    found: dict[str, Any] = {}
    names = {
        id(p): f"{key}.{name}"
        for key, module in reversed(state.items())
        if isinstance(module, nn.Module)
        for name, p in module.named_parameters()
    }
    for key, value in state.items():
        if isinstance(value, nn.Module):
            found |= {f"{key}.{n}": full(t) for n, t in value.state_dict().items()}
        elif isinstance(value, torch.optim.Optimizer):
            owner = getattr(value, "optim", value)
            for p, held in owner.state.items():
                found |= {f"{key} {names.get(id(p))} {n}": full(v) for n, v in held.items()}
            for group in value.param_groups:
                for p in group["params"]:
                    rest = {n: v for n, v in group.items() if n != "params"}
                    found[f"{key} {names.get(id(p))}"] = repr(sorted(rest.items()))
        elif isinstance(value, dict):
            for name, inner in value.items():
                tensors = inner if isinstance(inner, dict) else {}
                found |= {f"{key}.{name}.{n}": full(t) for n, t in tensors.items()}
        elif hasattr(value, "local_shards"):
            for shard in value.local_shards():
                rows = shard.tensor.unbind()
                for row, numbers in enumerate(rows, shard.metadata.shard_offsets[0]):
                    found[f"{key} {row}"] = numbers.clone()
    return found


def full(value: Any) -> Any:
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def generators() -> list[Any]:
    told = np.random.get_state()
    return [torch.get_rng_state().tolist(), told[1].tolist(), told[2], random.getstate()]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        bits = [t.contiguous().flatten().view(torch.uint8) for t in (a, b)] if a.numel() else []
        return a.shape == b.shape and a.dtype == b.dtype and (not bits or bits[0].equal(bits[1]))
    return bool(a == b)


# Saving and restoring ----------------------------------------------------------------------------


def seed(rank: int, number: int) -> None:
    torch.manual_seed(number + rank)
    np.random.seed(number + rank)
    random.seed(number + rank)


def build(name: str, rank: int, size: int, number: int) -> Job:
    torch.manual_seed(number)
    job = SHARDINGS[name](rank, size)
    seed(rank, number)
    return job


def save(name: str, size: int, folder: Path) -> None:
    def work(rank: int) -> None:
        job = build(name, rank, size, 1)
        ckpt = Checkpointer(folder / "checkpoints", every=1000, upload="thread")
        ckpt.restore(job.state)
        for step in range(STEPS):
            job.step(step)
            ckpt.step(step, job.state)
        truth = whole(job.state)
        generator = generators()
        ckpt.save(STEPS - 1, job.state)
        if name in REFUSED:
            ckpt.fence()
            ckpt.wait()
            assert ckpt._met is not None
            assert ckpt._met.saves.current is not None
            outcome = ckpt._met.saves.current.outcome
            assert outcome is not None
            assert REFUSED[name] in str(outcome.error), outcome.error
            assert len(str(outcome.error).splitlines()) == 1
            dist.barrier()
            assert not [*(folder / "checkpoints").glob("step-*")], "something was written"
        else:
            ckpt.wait()
            assert ckpt.durable, ckpt.errors
            assert ckpt._met is not None
            assert ckpt._met.tier is not None
            while not ckpt._met.tier.is_settled_here:  # the copy in memory is whole as well
                time.sleep(0.01)
            dist.barrier()
        position = job.state["loader"].state_dict()
        mine = {"whole": truth, "rng": generator, "loader": position}
        torch.save(mine, folder / f"truth-{rank}")
        ckpt.close(final=False)

    ranks(size, folder, work)


def restore(name: str, size: int, saved: int, folder: Path, snapshots: str | None) -> None:
    """Restore and compare; with `snapshots` from what memory has kept for as many ranks."""
    told = [torch.load(folder / f"truth-{r}", weights_only=False) for r in range(saved)]
    truth: dict[str, Any] = {}
    for one in told:
        truth = {**one["whole"], **truth}  # of buffers that differ, rank 0's

    def work(rank: int) -> None:
        job = build(name, rank, size, 1000)
        ckpt = Checkpointer(
            folder / "checkpoints", every=1000, upload="thread", snapshot_every=snapshots
        )
        skip: list[str] = []
        if name == "torchdata" and size != saved:
            with pytest.raises(StateMismatch, match=f"saved by {saved} ranks"):
                ckpt.restore(job.state)
            skip = ["loader"]
        assert ckpt.restore(job.state, skip=skip) == STEPS
        assert ckpt._restored_tier == ("memory" if snapshots else "durable")
        generator = generators()
        found = whole(job.state)
        assert found.keys() <= truth.keys(), found.keys() - truth.keys()
        own = told[rank]["whole"] if snapshots else {}  # a buffer that differs is the rank's own
        for key, value in found.items():
            right = own.get(key, truth[key])
            assert same(value, right), f"{key}: {value} for {right}"
        if rank < saved:
            assert generator == told[rank]["rng"]
        if not skip:
            position = job.state["loader"].state_dict()
            if size == saved:
                assert same(position, told[rank]["loader"])
            else:
                assert position["position"] == sum(t["loader"]["position"] for t in told)
        everywhere: list[Any] = [None] * size
        dist.all_gather_object(everywhere, (set(found), repr(generator[0]), repr(generator[1])))
        assert set().union(*(keys for keys, *_ in everywhere)) == set(truth), "something is missing"
        for streams in list(zip(*everywhere, strict=True))[1:]:
            assert len(set(streams)) == size, "two ranks draw the same numbers"
        ckpt.close(final=False)

    ranks(size, folder, work)


def main(folder: Path, cases: list[str]) -> None:
    saved: set[tuple[str, int]] = set()
    began = time.monotonic()
    for case in cases:
        name, n, m = case.split(":")
        here = folder / f"{name}-{n}"
        if (name, int(n)) not in saved:
            here.mkdir(parents=True)
            save(name, int(n), here)
            saved.add((name, int(n)))
        if name in REFUSED:
            print(f"{case} refused", flush=True)
        else:
            if n == m:
                restore(name, int(m), int(n), here, "auto")
            restore(name, int(m), int(n), here, None)
            print(f"{case} same, {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
