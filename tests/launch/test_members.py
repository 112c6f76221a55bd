"""Nodes that join a job, and nodes that leave it: what the ranks do, and how it is booked."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
ETT = [sys.executable, "-m", "torchett.cli.main"]
SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
import torchett as ett

ett.init()
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
state = {"model": model}
ckpt = ett.Checkpointer(sys.argv[1] + "/ckpt", every=100_000)
first = ckpt.restore(state)
if dist.get_rank() == 0:
    with open(sys.argv[1] + "/lives", "a") as file:
        file.write(f"{first} {dist.get_world_size()}\\n")
for step in range(first, 100_000):
    with ett.step(step):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.02)
    ckpt.step(step, state)
    if dist.get_world_size() == 2 and step > first + 20:
        break
ckpt.close()
dist.destroy_process_group()
"""


def lives(folder: Path) -> list[list[int]]:
    """First step and ranks of each life so far."""
    try:
        lines = (folder / "lives").read_text().splitlines()
    except OSError:
        return []
    return [[int(word) for word in line.split()] for line in lines]


def run_two(
    folder: Path, job: str, script: str, begun: Callable[[], object], *words: str
) -> tuple[list[int], str]:
    """Two nodes of one job on this host; the second comes when the first has begun."""
    (folder / "train.py").write_text(script)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "SLURM_"))}
    env = kept | {"ETT_RUNS": str(folder / "runs"), "OMP_NUM_THREADS": "1"}
    port = 29_100 + os.getpid() % 300
    running: list[subprocess.Popen[bytes]] = []
    try:
        for node in range(2):
            command = [*ETT, "run", "--job", job, "--node", str(node), "--nodes", "2"]
            command += ["--progress", "0", "--", sys.executable, "-m", "torch.distributed.run"]
            command += ["--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
            command += [f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={job}", *words]
            command += ["--rdzv-conf=last_call_timeout=1", "train.py", str(folder)]
            with (folder / f"log-{node}").open("w") as log:
                one = subprocess.Popen(
                    command, env=env, cwd=folder, stdout=log, stderr=log, start_new_session=True
                )
            running.append(one)
            over = time.monotonic() + 60
            while not begun() and time.monotonic() < over:
                time.sleep(0.1)
            time.sleep(0 if node else 1)
        codes = [one.wait(timeout=80) for one in running]
    finally:
        for one in running:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
    return codes, (folder / "log-0").read_text() + (folder / "log-1").read_text()


def report(folder: Path, job: str) -> dict[str, Any]:
    env = os.environ | {"ETT_RUNS": str(folder / "runs")}
    found: dict[str, Any] = json.loads(
        subprocess.check_output([*ETT, "report", job, "--json"], env=env)
    )
    return found


@pytest.mark.timeout(150)
def test_ranks_save_before_they_make_room_for_a_node(tmp_path: Path) -> None:
    codes, said = run_two(tmp_path, "grows", SCRIPT, lambda: lives(tmp_path))
    assert codes == [0, 0], said
    (alone, together) = lives(tmp_path)
    assert alone == [0, 1]
    assert together[1] == 2
    assert together[0] > 10  # it went on where it was: nothing was saved but for the change
    shown = report(tmp_path, "grows")
    assert shown["failures"] == {"infra": 0, "scheduler": 1, "user": 0}
    assert shown["accounts"].get("unsaved", 0) == 0


FLAPS = """
import os, signal, sys, time
if os.environ["ETT_NODE"] == "1":
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
open(sys.argv[1] + "/begun", "w").close()
over = time.monotonic() + 90
while time.monotonic() < over:
    time.sleep(0.1)
    known = sys.argv[1] + "/runs/flaps/restarts.jsonl"
    decided = open(known).read() if os.path.exists(known) else ""
    if os.environ["WORLD_SIZE"] == "1" and "replace" in decided:
        sys.exit(0)
sys.exit(1)
"""


@pytest.mark.timeout(150)
def test_a_node_that_fails_again_and_again_leaves_and_the_other_goes_on(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    codes, said = run_two(tmp_path, "flaps", FLAPS, begun.exists, "--max-restarts=9")
    assert codes == [0, 1], said
    assert "began 3 failures without durable progress" in said
    assert "has left: the other nodes begin a new rendezvous" in said
    decisions = [(one["node"], one["outlook"]) for one in report(tmp_path, "flaps")["restarts"]]
    assert decisions == [(1, "restart-now"), (1, "restart-now"), (1, "replace-node")]
