"""The moments at which a drill sends its signal, and how each is recognised.

start_up      the rank keeps a record and has not stepped
step          half a step after the last one ended
evaluation    a span of that account is open
save          a save has begun and is not durable
data_wait     the loader's workers are stopped (SIGSTOP), and no step ends any more
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torchett.launch.drill.live_rank import LiveRank
from torchett.model.accounts import INDEX

MOMENTS = ("start_up", "step", "evaluation", "save", "data_wait")
_LOOK_S = 0.0005
_FEW = 5  # steps before one is usual
_BLOCKED = (INDEX["checkpoint_blocked"], INDEX["final_checkpoint"])


@dataclass(slots=True)
class Stopped:
    """Processes that wait for SIGCONT."""

    pids: list[int] = field(default_factory=list)

    def stop(self, pids: list[int]) -> None:
        for pid in pids:
            _send(pid, signal.SIGSTOP)
        self.pids += pids

    def go_on(self) -> None:
        for pid in self.pids:
            _send(pid, signal.SIGCONT)
        self.pids = []


def wait_for(
    moment: str, run: Path, stopped: Stopped, *, until: float, runs: Callable[[], bool]
) -> bool:
    """Return at that moment of the run: whether it came before `until` and the job's end."""
    rank: LiveRank | None = None
    while time.monotonic() < until and runs():
        if rank is None or not rank.alive:
            rank = LiveRank.of(run)
            if rank is None:
                time.sleep(0.02)
                continue
        if moment == "data_wait":
            return _without_data(rank, stopped, until, runs)
        if _is_there(moment, rank):
            return True
        time.sleep(_LOOK_S)
    return False


def _is_there(moment: str, rank: LiveRank) -> bool:
    steps = rank.steps()
    if moment == "start_up":
        return not steps
    if len(steps) < _FEW:
        return False
    if moment == "evaluation":
        return INDEX["evaluation"] in rank.doing()
    if moment == "save":
        return any(rank.save_is_under_way(account) for account in _BLOCKED)
    took_s = sorted(end - begin for begin, end in steps)[len(steps) // 2] / 1e9
    return time.monotonic() - steps[-1][1] / 1e9 >= took_s / 2


def _without_data(rank: LiveRank, stopped: Stopped, until: float, runs: Callable[[], bool]) -> bool:
    """Stop the loader's workers, and wait until no step ends any more."""
    while time.monotonic() < until and runs() and len(rank.steps()) < _FEW:
        time.sleep(0.02)
    workers = loader_workers(rank.pid)
    if not workers:
        return False
    stopped.stop(workers)
    while time.monotonic() < until and runs():
        steps = rank.steps()
        took_s = max(end - begin for begin, end in steps) / 1e9
        if time.monotonic() - steps[-1][1] / 1e9 > max(0.5, 3 * took_s):
            return True
        time.sleep(0.02)
    return False


def loader_workers(pid: int) -> list[int]:
    """The children of a rank that were forked from it: the workers of its loaders."""
    own = _command(pid)
    return [child for child in children(pid) if own and _command(child) == own]


def children(pid: int) -> list[int]:
    """The kernel lists a process's children under the thread that made them."""
    found: list[int] = []
    try:
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except OSError:
                pass  # a thread that has ended has no children
    except OSError:
        pass
    return found


def family(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *(found for child in children(pid) for found in family(child))]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
