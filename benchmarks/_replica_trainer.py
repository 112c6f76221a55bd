"""What `benchmarks/replicas.py` trains: one rank of a replica group, with a stopwatch of its own.

    python _replica_trainer.py torchft 0 STOPWATCH       until the step in the file `stop` beside it
    python _replica_trainer.py in-process STEPS STOPWATCH FAULTS

The stopwatch does not know torchett's record. It writes `KIND BEGIN END STEP` lines, times in
seconds since the epoch:

    work     a step that counts: forward, backward, vote, update, without the wait for the quorum
    refused  the same of a step that the groups did not commit
    healing  a step in which the state came from a peer
    quorum   a wait for the quorum
    start    a process begins; its pid in place of a step
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchett as ett

STEP_S = 0.05


class Stopwatch:
    """Lines in a file, one a look."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.say("start", time.time(), time.time(), os.getpid())

    def say(self, kind: str, begin_s: float, end_s: float, step: int) -> None:
        with self._path.open("a") as file:
            file.write(f"{kind} {begin_s:.6f} {end_s:.6f} {step}\n")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))


def torchft(watch: Stopwatch) -> None:
    """torchft's own example in small: DDP over replica groups, a quorum a step."""
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    group = os.environ["REPLICA_GROUP_ID"]
    ett.init()
    net = model()
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    within = timedelta(seconds=5)
    manager: Any = Manager(
        pg=ProcessGroupGloo(timeout=within),
        min_replica_size=1,
        load_state_dict=lambda state: net.load_state_dict(state["net"]),
        state_dict=lambda: {"net": net.state_dict()},
        replica_id=f"group_{group}",
        timeout=within,
        connect_timeout=within,
        heartbeat_interval=timedelta(milliseconds=50),
    )
    ddp: Any = DistributedDataParallel(manager, net)
    optimizer = Optimizer(manager, sgd)
    while manager.current_step() < last_step():
        begin = time.time()
        optimizer.zero_grad()
        asked = time.time()
        manager.wait_quorum()
        ready = time.time()
        time.sleep(STEP_S)
        ddp(torch.randn(16, 64)).square().mean().backward()
        before, healing = manager.current_step(), not manager.is_participating()
        optimizer.step()
        end = time.time()
        done = manager.current_step() > before
        watch.say("quorum", asked, ready, before)
        kind = "healing" if healing else "work" if done else "refused"
        watch.say(kind, begin, end, before)
    manager.shutdown()


def in_process(steps: int, watch: Stopwatch, faults: set[int]) -> None:
    """nvidia-resiliency-ext: the function begins anew in every rank when one of them raises.

    Ranks meet through a store: a rank that waits inside gloo can often not be interrupted.
    """
    import torch.distributed as dist
    from nvidia_resiliency_ext import inprocess

    saved = Path(sys.argv[3]).with_name("saved")

    def train(call_wrapper: inprocess.CallWrapper | None = None) -> None:
        ett.init()
        iteration = call_wrapper.iteration if call_wrapper is not None else 0
        net = model()
        sgd = torch.optim.SGD(net.parameters(), lr=0.01)
        step = int(saved.read_text()) if saved.exists() else 0
        while step < steps:
            begin = time.time()
            with ett.step(step):
                time.sleep(STEP_S)
                net(torch.randn(16, 64)).square().mean().backward()
                keep.add(f"{iteration}/{step}", 1)
                while keep.add(f"{iteration}/{step}", 0) < 2:  # both ranks are here
                    time.sleep(0.001)
                sgd.step()
                sgd.zero_grad()
            watch.say("work", begin, time.time(), step)
            step += 1
            if step % 10 == 0 and dist_rank() == 0:
                saved.write_text(str(step))
                ett.checkpoint_durable(step - 1)
            if step in faults and dist_rank() == 1:
                faults.discard(step)
                watch.say("fault", time.time(), time.time(), step)
                raise ValueError(f"a fault at step {step}")

    port = int(os.environ["MASTER_PORT"])
    keep = dist.TCPStore("127.0.0.1", port + 1, None, dist_rank() == 0, wait_for_workers=False)
    wrapped = inprocess.Wrapper(
        store_kwargs={"port": port + 2, "timeout": timedelta(seconds=60)},
        monitor_thread_interval=timedelta(milliseconds=100),
        monitor_process_interval=timedelta(milliseconds=100),
        last_call_wait=timedelta(milliseconds=100),
        soft_timeout=timedelta(seconds=30),
        hard_timeout=timedelta(seconds=60),
    )(train)
    wrapped()


def last_step() -> int:
    stop = Path(sys.argv[3]).with_name("stop")
    return int(stop.read_text() or 1 << 30) if stop.exists() else 1 << 30


def dist_rank() -> int:
    return int(os.environ["RANK"])


if __name__ == "__main__":
    kind, steps, stopwatch = sys.argv[1], int(sys.argv[2]), Stopwatch(sys.argv[3])
    if kind == "torchft":
        torchft(stopwatch)
    else:
        in_process(steps, stopwatch, {int(word) for word in sys.argv[4].split(",") if word})
