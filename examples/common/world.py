"""Where this process stands in the job, and the device and process group that follow from it."""

import os
from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One rank's place among `size` ranks; rank 0 of 1 when started without torchrun."""

    rank: int
    local_rank: int
    size: int

    @classmethod
    def from_env(cls) -> Self:
        """The place that torchrun wrote into the environment."""
        return cls(
            rank=int(os.environ.get("RANK", 0)),
            local_rank=int(os.environ.get("LOCAL_RANK", 0)),
            size=int(os.environ.get("WORLD_SIZE", 1)),
        )


def set_up_device(world: World) -> torch.device:
    """The GPU of this rank, made current; the CPU on a machine without one."""
    if not torch.cuda.is_available():
        # Ranks on one machine share its cores, and one thread adds numbers in one order.
        torch.set_num_threads(1)
        return torch.device("cpu")
    device = torch.device("cuda", world.local_rank)
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")
    return device


def join_process_group(world: World, device: torch.device) -> None:
    """Returns once all ranks have met; at once when there is only this one."""
    if world.size == 1:
        return
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=_store_of_this_attempt(),
        rank=world.rank,
        world_size=world.size,
        device_id=device if on_gpu else None,
    )


def _store_of_this_attempt() -> dist.Store:
    """The store in which the ranks meet, empty when an attempt begins.

    torchrun keeps one store over all its restarts. In it a restarted rank can find the address of a
    dead one, and wait for half an hour (https://github.com/pytorch/pytorch/issues/135712). Each
    agent counts its own restarts, so the count is a prefix that all ranks share on one machine
    only; on several, start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
    """
    store, _, _ = next(rendezvous("env://"))
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        return store
    return dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
