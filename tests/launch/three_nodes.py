"""Three nodes on one machine: network namespaces on a switch, a job, and what may happen to it.

namespace NAME-sw   a bridge
namespace NAME-0    10.214.0.1   serves the rendezvous
namespace NAME-1    10.214.0.2
namespace NAME-2    10.214.0.3   a spare, if the job asks for two nodes
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IP = shutil.which("ip") or "/usr/sbin/ip"
TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
import torchett as ett

ett.init()
dist.init_process_group("gloo")
rank, saved = dist.get_rank(), sys.argv[1] + "/saved.pt"
first, total = torch.load(saved) if os.path.exists(saved) else (0, torch.zeros(1))
first = torch.tensor([first])
dist.broadcast(first, 0)
dist.broadcast(total, 0)
for step in range(int(first), int(sys.argv[2])):
    with ett.step(step):
        part = torch.ones(1)
        dist.all_reduce(part)
        total += float(step)
        time.sleep(0.05)
    if rank == 0:
        with open(sys.argv[1] + "/steps", "a") as file:
            file.write(f"{time.time()} {step} {dist.get_world_size()}\\n")
    if step % 5 == 4:
        if rank == 0:
            torch.save((step + 1, total), saved + ".new")
            os.replace(saved + ".new", saved)
            ett.checkpoint_durable(step)
        dist.barrier()
if rank == 0:
    open(sys.argv[1] + "/total", "w").write(str(int(total)))
dist.destroy_process_group()
"""


class Nodes:
    """The namespaces, and the processes that were started in them."""

    def __init__(self, name: str) -> None:
        self.names = [f"{name}-{node}" for node in range(3)]
        self.switch = f"{name}-sw"
        self.running: list[subprocess.Popen[bytes]] = []

    def address(self, node: int) -> str:
        return f"10.214.0.{node + 1}"

    def start(self, node: int, folder: Path, command: list[str], **env: str) -> None:
        """Start a command on this node; its output goes to `log-NODE`."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "SLURM_"))}
        own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        with (folder / f"log-{node}").open("a") as log:
            self.running.append(
                subprocess.Popen(
                    [IP, "netns", "exec", self.names[node], *command],
                    env=kept | own | env,
                    cwd=folder,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def pids(self, node: int) -> list[int]:
        shown = subprocess.run([IP, "netns", "pids", self.names[node]], capture_output=True)
        return [int(word) for word in shown.stdout.split()]

    def crash(self, node: int) -> None:
        """The machine is gone: nobody on the network is told."""
        self.link(node, "down")
        for pid in self.pids(node):
            os.kill(pid, signal.SIGKILL)

    def kill_agent(self, node: int) -> None:
        for pid in self.pids(node):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            agents = b"torchett.launch.elastic.agent", b"torch.distributed.run"
            if any(agent in words for agent in agents) and b"torchett.cli.main" not in words:
                os.kill(pid, signal.SIGKILL)

    def link(self, node: int, state: str) -> None:
        _ip("-n", self.switch, "link", "set", f"port{node}", state)

    def deaf(self, node: int) -> None:
        """What this node sends is lost; it still hears the others."""
        _ip("-n", self.names[node], "route", "replace", "blackhole", "10.214.0.0/24")
        _ip("-n", self.names[node], "addr", "del", f"{self.address(node)}/24", "dev", "eth0")
        _ip("-n", self.names[node], "addr", "add", f"{self.address(node)}/32", "dev", "eth0")

    def end(self) -> None:
        for name in self.names:
            shown = subprocess.run([IP, "netns", "pids", name], capture_output=True)
            for pid in shown.stdout.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
        for one in self.running:
            one.wait()


@contextmanager
def three_nodes(name: str) -> Iterator[Nodes | None]:
    """The nodes, torn down afterwards; None where namespaces cannot be made."""
    nodes = Nodes(name)
    try:
        made = all(_ip("netns", "add", one) for one in (*nodes.names, nodes.switch))
        made = made and _ip("-n", nodes.switch, "link", "add", "br0", "type", "bridge")
        made = made and _ip("-n", nodes.switch, "link", "set", "br0", "up")
        for node, one in enumerate(nodes.names if made else []):
            port = f"port{node}"
            made &= _ip(
                *("-n", nodes.switch, "link", "add", port, "type", "veth"),
                *("peer", "name", "eth0", "netns", one),
            )
            made &= _ip("-n", nodes.switch, "link", "set", port, "master", "br0", "up")
            made &= _ip("-n", one, "addr", "add", f"{nodes.address(node)}/24", "dev", "eth0")
            made &= _ip("-n", one, "link", "set", "eth0", "up")
            made &= _ip("-n", one, "link", "set", "lo", "up")
        yield nodes if made else None
    finally:
        nodes.end()
        for one in (*nodes.names, nodes.switch):
            _ip("netns", "del", one)


def torchrun(nodes: Nodes, node: int, nnodes: str, script: Path, *words: str) -> list[str]:
    """torchrun's command for this node."""
    head = nodes.address(0)
    return [
        *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nnodes}"),
        *("--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=three"),
        *(f"--rdzv-endpoint={head}:29555", f"--local-addr={nodes.address(node)}"),
        *(f"--rdzv-conf=is_host={node == 0}", str(script), *words),
    ]


def ett_run(command: list[str]) -> list[str]:
    """`ett run` of a command, the same on each node: the rest torchrun's rendezvous says."""
    ett = [sys.executable, "-m", "torchett.cli.main", "run", "--spares", "1", "--progress", "0"]
    return [*ett, "--", *command]


def steps(folder: Path) -> list[tuple[float, int, int]]:
    """When rank 0 finished which step, in a job of how many ranks."""
    try:
        lines = (folder / "steps").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        words = line.split()
        if len(words) == 3:
            found.append((float(words[0]), int(words[1]), int(words[2])))
    return found


def wait_for(condition: object, seconds: float) -> bool:
    """Whether the condition (a function) holds within so long."""
    assert callable(condition)
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        if condition():
            return True
        time.sleep(0.1)
    return False


def _ip(*words: str) -> bool:
    try:
        return not subprocess.run([IP, *words], capture_output=True).returncode
    except OSError:
        return False
