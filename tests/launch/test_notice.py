"""Ranks can tell a preemption from being stopped for a peer's sake."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchett.runs.reader import RunReader

SCRIPT = """
import os, pathlib, signal, subprocess, sys, time

folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

def heard(number, frame):
    time.sleep(0.3)
    notice = pathlib.Path(os.environ["ETT_NOTICE"])
    said = notice.read_text() if notice.exists() else "none"
    (folder / f"heard-{rank}").write_text(f"{said} {helper.poll()}")
    sys.exit(9)

signal.signal(signal.SIGTERM, heard)
(folder / f"ready-{rank}").touch()
while len(list(folder.glob("ready-*"))) < 2:
    time.sleep(0.02)
if rank == "0" and "fail" in sys.argv:
    time.sleep(0.5)
    sys.exit(3)
while True:
    time.sleep(0.02)
"""


def start(
    folder: Path, *words: str, script: str = SCRIPT, standby: str = "--no-standby"
) -> "subprocess.Popen[bytes]":
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-m", "torchett.cli.main", "run", "--job", "j", "--progress", "0"]
    command += [standby, "--no-hooks", "--", sys.executable, "-m", "torch.distributed.run"]
    command += ["--standalone", "--nproc-per-node=2", str(folder / "train.py"), str(folder), *words]
    env = os.environ | {"ETT_RUNS": str(folder / "runs")}
    return subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)


def wait_for(folder: Path, name: str) -> None:
    over = time.monotonic() + 60
    while len(list(folder.glob(name))) < 2 and time.monotonic() < over:
        time.sleep(0.02)


@pytest.mark.timeout(120)
def test_a_preemption_is_announced_and_leaves_helpers_alone(tmp_path: Path) -> None:
    running = start(tmp_path)
    wait_for(tmp_path, "ready-*")
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=60) != 0
    assert {path.read_text() for path in tmp_path.glob("heard-*")} == {"SIGTERM None"}
    assert len(list(tmp_path.glob("heard-*"))) == 2


@pytest.mark.timeout(120)
def test_a_warning_reaches_the_ranks_and_ends_nobody(tmp_path: Path) -> None:
    running = start(tmp_path)
    wait_for(tmp_path, "ready-*")
    running.send_signal(signal.SIGUSR1)
    time.sleep(1.0)
    assert running.poll() is None
    assert (tmp_path / "runs" / "j" / "notice-0-0").read_text() == "SIGUSR1"
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=60) != 0


@pytest.mark.timeout(120)
def test_a_peers_failure_is_no_preemption(tmp_path: Path) -> None:
    running = start(tmp_path, "fail")
    assert running.wait(timeout=60) != 0
    assert (tmp_path / "heard-1").read_text() == "none None"
    assert (tmp_path / "runs" / "j" / "notice-0-0-stopped-0").exists()


SAVES = """
import os, pathlib, sys, time
from torchett.levers.checkpoint.preemption.notice import install

folder, rank, notice = pathlib.Path(sys.argv[1]), os.environ["RANK"], install()
(folder / f"ready-{rank}").touch()
while not notice.received():
    time.sleep(0.01)
(folder / f"saved-{rank}").write_text(notice.reason)
notice.leave()
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_ranks_save_when_every_process_is_signalled_at_once(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Slurm does so; whoever hears it first, ranks, agent or launcher."""
    running = start(tmp_path, script=SAVES)
    wait_for(tmp_path, "ready-*")
    for pid in reversed(family(running.pid)):
        os.kill(pid, number)
    assert running.wait(timeout=60) != 0
    assert len(list(tmp_path.glob("saved-*"))) == 2


TRAINS = """
import os, pathlib, sys, torch, torchett as ett
import torch.distributed as dist

folder = pathlib.Path(sys.argv[1])
checkpoints = ett.Checkpointer(folder / "checkpoints", every=1_000_000)
data = torch.utils.data.DataLoader(torch.zeros(1_000_000, 8), num_workers=1)
batches = iter(data)  # forked before there is anything to save
dist.init_process_group("gloo")
torch.manual_seed(0)  # ranks that differ under one name are refused
model = torch.nn.Linear(8, 8)
state = {"model": model}
checkpoints.restore(state)
for step, batch in enumerate(ett.steps(batches)):
    model(batch).sum().backward()
    torch.distributed.all_reduce(torch.zeros(1))
    checkpoints.step(step, state)
    if step == 50:
        (folder / f"ready-{os.environ['RANK']}").touch()
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("standby", ["--standby", "--no-standby"])
def test_workers_uploads_and_agents_that_are_signalled_with_a_rank_let_it_save(
    standby: str, tmp_path: Path
) -> None:
    running = start(tmp_path, script=TRAINS, standby=standby)
    wait_for(tmp_path, "ready-*")
    for pid in reversed(family(running.pid)):
        os.kill(pid, signal.SIGTERM)
    assert running.wait(timeout=60) != 0
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 1
    ledger = RunReader(tmp_path / "runs" / "j").poll().ledger()
    assert ledger.accounts.get("unsaved", 0) == 0
    assert ledger.accounts["effective"] > 0


@pytest.mark.timeout(120)
def test_a_warning_to_every_process_and_then_sigterm_ends_ranks_that_have_saved(
    tmp_path: Path,
) -> None:
    """A forked rank has its agent's handler for USR1, so it trains on after that save.

    SIGTERM comes while it saves or some steps later; then those steps are saved, too.
    """
    running = start(tmp_path, script=TRAINS, standby="--standby")
    wait_for(tmp_path, "ready-*")
    for pid in reversed(family(running.pid)):
        os.kill(pid, signal.SIGUSR1)
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=15) != 0
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) in (1, 2)
    assert RunReader(tmp_path / "runs" / "j").poll().ledger().accounts.get("unsaved", 0) == 0


def family(pid: int) -> list[int]:
    """A process and all below it."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    below = [int(word) for path in children for word in path.read_text().split()]
    return [pid, *(found for child in below for found in family(child))]
