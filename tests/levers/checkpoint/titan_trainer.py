"""torchtitan's loop over its own parts: checkpoint manager, optimizers, schedulers, loader.

python titan_trainer.py FOLDER [KILL_BEFORE]   one of two ranks; it prints the digest of the end

Its Trainer (titan_whole.py) needs CUDA; this loop calls the same parts in the same order (load,
train_step, maybe_wait_for_staging, save, close), on CPUs.
"""

import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

from torchett.levers.checkpoint.frameworks.torchtitan import CheckpointManager

torch.set_num_threads(1)
STEPS = 12


class Data(torch.utils.data.IterableDataset[torch.Tensor]):
    """A stream that knows where it is."""

    def __init__(self, rank: int) -> None:
        self.rank, self.position = rank, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            self.position += 1
            seed = 1000 * self.rank + self.position
            yield torch.randn(4, generator=torch.Generator().manual_seed(seed))

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Trainer:
    """As torchtitan's Trainer: it is the state `train_state`, and counts steps from 1."""

    def __init__(
        self, folder: Path, rank: int = 0, size: int = 1, adapter: Any = None, **checkpoint: Any
    ) -> None:
        torch.manual_seed(3 + rank)
        self.step = self.ntokens_seen = self.first = 0
        parts = [
            torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.3)),
            torch.nn.Sequential(torch.nn.Linear(16, 2)),
        ]
        # Stages of a pipeline name their layers apart, as those of torchtitan.
        self.model_parts = [
            torch.nn.ModuleDict({f"layers{i}": part}) for i, part in enumerate(parts)
        ]
        if size > 1:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (size,))
            for part in parts:
                fully_shard(part, mesh=mesh)
        self.optimizers = default_adamw(lr=1e-2).build(model_parts=self.model_parts)
        self.lr_schedulers = LRSchedulersContainer.Config(warmup_steps=3).build(
            optimizers=self.optimizers, training_steps=STEPS
        )
        self.dataloader = ParallelAwareDataloader(Data(rank), rank, size, batch_size=2)
        config = CheckpointManager.Config(
            **{"enable": True, "every": "1", "snapshot_every": "", "keep_latest_k": 20} | checkpoint
        )
        self.checkpointer = config.build(
            dataloader=self.dataloader, model_parts=self.model_parts, optimizers=self.optimizers,
            lr_schedulers=self.lr_schedulers, states={"train_state": self}, sd_adapter=adapter,
            base_folder=str(folder),
        )  # fmt: skip

    def train(self, before: int = -1, how: Any = None) -> None:
        self.checkpointer.load(step=-1)
        self.first = self.step
        data = iter(self.dataloader)
        while self.step < STEPS:
            self.step += 1
            self.optimizers.zero_grad()
            batch = next(data)
            self.ntokens_seen += batch.numel()
            for part in self.model_parts:
                for layer in part.values():
                    batch = layer(batch)
            batch.square().mean().backward()
            settle(self)
            if self.step == before:
                how()
            self.checkpointer.maybe_wait_for_staging()
            self.optimizers.step()
            self.lr_schedulers.step()
            self.checkpointer.save(self.step, last_step=self.step == STEPS)
        self.checkpointer.close()

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "ntokens_seen": self.ntokens_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.ntokens_seen = state["step"], state["ntokens_seen"]

    def digest(self) -> str:
        """Of everything that training depends on, of all ranks."""
        sha = hashlib.sha256()
        states = [part.state_dict() for part in self.model_parts]
        for state in [*states, self.optimizers.state_dict()]:
            for name in sorted(state):
                value = state[name]
                value = value.full_tensor() if isinstance(value, DTensor) else value
                known = value.numpy().tobytes() if torch.is_tensor(value) else repr(value).encode()
                sha.update(name.encode() + known)
        sha.update(repr((self.step, self.ntokens_seen)).encode())
        sha.update(repr(self.lr_schedulers.get_metrics()).encode())
        sha.update(repr(self.dataloader.dataset.position).encode())
        own = sha.hexdigest() + hashlib.sha256(bytes(torch.get_rng_state().tolist())).hexdigest()
        if not dist.is_initialized():
            return own
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, own)
        return "".join(every)


def settle(trainer: Trainer) -> None:
    ours = getattr(trainer.checkpointer, "checkpointer", None)
    met = None if ours is None else ours._met
    if met is not None and met.snapshots.prepared:
        met.snapshots.wait()
        while met.tier is not None and not met.tier.is_settled_here:
            time.sleep(0.001)


if __name__ == "__main__":
    where, rank, size = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    before, died = -1, where / f"died-{rank}"
    if len(sys.argv) > 2 and not died.exists():
        where.mkdir(exist_ok=True)
        died.touch()
        before = int(sys.argv[2])
    dist.init_process_group("gloo")
    trainer = Trainer(where, rank, size, every="1000", snapshot_every="3")
    trainer.train(before, lambda: os.kill(os.getpid(), signal.SIGKILL))
    tier = trainer.checkpointer.checkpointer._restored_tier
    print("began at", trainer.first, "from", tier, flush=True)
    print("digest", hashlib.sha256(trainer.digest().encode()).hexdigest(), flush=True)
    with suppress(Exception):
        dist.destroy_process_group()
