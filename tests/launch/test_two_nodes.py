"""One job on two nodes: two launchers, two agents, one run. Nodes are network namespaces."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchett.runs.reader import RunReader

SCRIPT = """
import os, signal, sys, time
import torch
import torch.distributed as dist
import torchett as ett

ett.init()
dist.init_process_group("gloo")
rank, saved, total, first = dist.get_rank(), sys.argv[1] + "/saved.pt", torch.zeros(1), 0
if os.path.exists(saved):
    first, total = torch.load(saved)
first = torch.tensor([first])
dist.broadcast(first, 0)
dist.broadcast(total, 0)
for step in range(int(first), 30):
    with ett.step(step):
        part = torch.tensor([float(step * (rank + 1))])
        dist.all_reduce(part)
        total += part
        time.sleep(0.02)
    if step % 5 == 4:
        if rank == 0:
            torch.save((step + 1, total), saved + ".new")
            os.replace(saved + ".new", saved)
            ett.checkpoint_durable(step)
        dist.barrier()
    if step == 17 and os.environ["ETT_NODE"] == "1" and not os.path.exists(sys.argv[1] + "/killed"):
        open(sys.argv[1] + "/killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    print("total", int(total), flush=True)
dist.destroy_process_group()
"""
TOTAL = sum(step * 3 for step in range(30))


def ip(*words: str) -> bool:
    tool = shutil.which("ip") or "/usr/sbin/ip"
    try:
        return not subprocess.run([tool, *words], capture_output=True).returncode
    except OSError:
        return False


@pytest.fixture(params=["one host", "namespaces"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[list[str]]]]:
    """The head's address, and what goes before a command to run it on each node."""
    if request.param == "one host":
        yield "127.0.0.1", [[], []]
        return
    names = [f"ett{os.getpid()}-{node}" for node in range(2)]
    links = [f"ett{os.getpid() % 100_000}{end}" for end in "ab"]
    try:
        if not all(ip("netns", "add", name) for name in names):
            pytest.skip("network namespaces cannot be made here")
        made = ip("link", "add", links[0], "type", "veth", "peer", "name", links[1])
        for node, (name, link) in enumerate(zip(names, links, strict=True)):
            made &= ip("link", "set", link, "netns", name)
            made &= ip("-n", name, "addr", "add", f"10.213.0.{node + 1}/24", "dev", link)
            made &= ip("-n", name, "link", "set", link, "up")
            made &= ip("-n", name, "link", "set", "lo", "up")
        if not made:
            pytest.skip("a pair of network interfaces cannot be made here")
        tool = shutil.which("ip") or "/usr/sbin/ip"
        yield "10.213.0.1", [[tool, "netns", "exec", name] for name in names]
    finally:
        for name in names:
            ip("netns", "del", name)


@pytest.mark.timeout(180)
def test_two_nodes_start_and_recover_as_one_job(
    nodes: tuple[str, list[list[str]]], tmp_path: Path
) -> None:
    head, befores = nodes
    (tmp_path / "train.py").write_text(SCRIPT)
    port = 29_600 + os.getpid() % 300
    launchers = []
    for node, before in enumerate(befores):
        command = [*before, sys.executable, "-m", "torchett.cli.main", "run", "--job", "two"]
        command += ["--node", str(node), "--nodes", "2", "--head", f"{head}:{port + 300}"]
        command += ["--progress", "0", "--", sys.executable, "-m", "torch.distributed.run"]
        command += ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=2", "--rdzv-backend=c10d"]
        command += [f"--rdzv-endpoint={head}:{port}", "--rdzv-id=two"]
        if before:
            command += [f"--local-addr=10.213.0.{node + 1}", f"--rdzv-conf=is_host={node == 0}"]
        command += [str(tmp_path / "train.py"), str(tmp_path)]
        env = os.environ | {"ETT_RUNS": str(tmp_path / "runs"), "OMP_NUM_THREADS": "1"}
        if before:
            link = f"ett{os.getpid() % 100_000}{'ab'[node]}"
            env |= {"GLOO_SOCKET_IFNAME": link}
        log = (tmp_path / f"log-{node}").open("w")
        launchers.append(
            subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        )
        log.close()
    try:
        over = time.monotonic() + 150
        codes = [one.wait(timeout=max(over - time.monotonic(), 1)) for one in launchers]
    finally:
        for one in launchers:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
    said = [(tmp_path / f"log-{node}").read_text() for node in range(2)]
    assert codes == [0, 0], "\n".join(said)
    assert f"total {TOTAL}" in said[0] + said[1]

    reader = RunReader(tmp_path / "runs" / "two").poll()
    ledger = reader.ledger()
    assert ledger.ranks == 2
    assert len(ledger.attempts) == 2
    assert [attempt.cause for attempt in reader.job.attempts] == ["SIGKILL", None]
    assert ledger.last_step == 29
    assert len(ledger.time_to_recover_ns) == 1
    assert sum(ledger.accounts.values()) == ledger.rank_ns
    for folder in ("attempt-0", "attempt-0.1"):
        found = sorted(path.name for path in (reader.run / folder).glob("rank-*.ett"))
        assert found == ["rank-0.ett", "rank-1.ett"], folder
