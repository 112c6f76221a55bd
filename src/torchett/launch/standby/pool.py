"""The standbys of one agent: one interface, two kinds.

    kind      where                                  a rank is                     memory
    spawned   GPUs, or ranks with several threads    a process of its own          per rank
    forked    no GPU and one thread per rank         a fork of one that imported   shared

A context on a GPU and OpenMP's threads do not survive a fork, so ranks are forked only where there
is neither. ETT_STANDBY_FORK=0 chooses spawned ones everywhere.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from torchett.record.levers import all_levers

if TYPE_CHECKING:
    from torchett.launch.standby.forked import Adopted

_PACKAGE = "torchett.launch.standby"
PRELOAD = (
    "torch",
    f"{_PACKAGE}.rehearsal:begin_hashing",
    "torch.distributed",
    "torch.utils.data",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch._inductor.compile_fx",
    "torch._inductor.codecache",
    "torch._inductor.graph",
    "torch._inductor.scheduler",
    "torch._functorch.aot_autograd",
    "torch._inductor.fx_passes.post_grad",
    "torch.distributed.tensor.experimental",  # dynamo imports it at the first call of a torch op
)
LAST = (f"{_PACKAGE}.rehearsal:hash_sources",)
DEVICE_FIRST = (f"{_PACKAGE}.on_device:wake_driver",)
DEVICE_LAST = (f"{_PACKAGE}.on_device:take_place", f"{_PACKAGE}.on_device:wake_triton")
REHEARSAL = (
    f"{_PACKAGE}.rehearsal:register_backends",
    f"{_PACKAGE}.rehearsal:probe_instructions",
    f"{_PACKAGE}.rehearsal:find_header",
    f"{_PACKAGE}.rehearsal:walk_the_compiler",
)
_GPUS = ("/dev/nvidiactl", "/dev/kfd")


class StandbyPool(Protocol):
    """Standbys for the ranks of one agent."""

    most_bytes: int  # the most memory that waiting ones have held

    def fill(self, spare: bool = False) -> None:
        """Start missing standbys; spare ones are for the next attempt and run at low priority."""

    def take(self, job: Mapping[str, Any]) -> "subprocess.Popen[bytes] | Adopted | None":
        """A process that now runs this rank; None if no standby fits."""

    def weigh(self) -> None:
        """Measure from time to time how much memory waiting standbys use."""

    def close(self) -> None:
        """End the standbys that were not needed."""


def start_pool(size: int, env: Mapping[str, str], *, in_agent: bool = True) -> StandbyPool:
    """A pool for `size` ranks with this environment, already started.

    `in_agent`: this process has one thread and no torch yet, so it may import for forked ranks.
    """
    from torchett.launch.standby.forked import ForkedStandbys
    from torchett.launch.standby.spawned import SpawnedStandbys

    more = [name for name in os.environ.get("ETT_PRELOAD", "").split(",") if name]
    preload = (*standby_imports(), *more)
    if can_fork(env):
        forked = ForkedStandbys(env, preload, REHEARSAL)
        if in_agent:
            forked.import_and_fork()
        else:
            forked.fill()
        return forked
    if os.environ.get("ETT_STANDBY_DEVICE") == "1":
        preload = (*DEVICE_FIRST, *preload, *DEVICE_LAST)
    spawned = SpawnedStandbys(size, env, preload, REHEARSAL)
    spawned.fill()
    return spawned


def standby_imports() -> tuple[str, ...]:
    """What every standby imports or calls, in this order; the job may need it at any moment."""
    levers = (name for lever in all_levers() for name in lever.standby_imports)
    return (*PRELOAD, *levers, *LAST)


def can_fork(env: Mapping[str, str]) -> bool:
    """Whether ranks with this environment can be forked here."""
    return (
        sys.platform == "linux"
        and env.get("ETT_STANDBY_FORK") != "0"
        and env.get("ETT_STANDBY_DEVICE") != "1"
        and env.get("ETT_STANDBY_MODEL") != "1"  # a model is compiled for one rank, not for all
        and env.get("OMP_NUM_THREADS") == "1"
        and (env.get("CUDA_VISIBLE_DEVICES") == "" or not any(map(os.path.exists, _GPUS)))
    )


@cache
def say_once(text: str) -> None:
    """Print why standbys are not used, once for all ranks and attempts."""
    print(f"torchett: ranks start without standbys: {text}", file=sys.stderr, flush=True)


def differs(env: Mapping[str, str], ours: Mapping[str, str]) -> bool:
    """Whether a rank's environment differs in what torch may have read; prints a line if so."""
    names = sorted({key for key, _ in env.items() ^ ours.items()})
    if names:
        say_once(f"their environment differs in {', '.join(names[:3])}")
    return bool(names)
