"""A script ends with its own status, whatever torch is doing for it on a thread."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

IN_A_STAGE = """
import time, torch, torchett as ett
plan = ett.Plan(seed=0)
@plan.stage("train_module_creation")
def model():
    while True: torch.randn(300, 300) @ torch.randn(300, 300)
@plan.stage("process_group_init", runs="main")
def group():
    time.sleep(0.2)
    raise KeyboardInterrupt
try:
    plan.run()
except KeyboardInterrupt:
    raise SystemExit(3)
"""

IN_A_WARM_UP = """
import time, torch, torchett as ett
model, batch = torch.nn.Linear(300, 300), torch.ones(300, 300)
busy = []
def loss(model, batch):
    while type(batch) is torch.Tensor:  # the rehearsal's is a fake one
        batch = model(batch)
        busy[:] = [True]
    return model(batch).sum()
ett.warm_up(model, loss, fast_batch=batch)
while not busy: time.sleep(0.1)
raise SystemExit(3)
"""

AT_A_STORE = """
import time, torch.distributed as dist
from torchett.levers.checkpoint.preemption.agreement import Agreement
from torchett.levers.checkpoint.store_coordinator import _Watch
server = dist.TCPStore("127.0.0.1", 0, is_master=True)
stores = [dist.TCPStore("127.0.0.1", server.port, is_master=False) for _ in range(2)]
agreement = Agreement(stores[0], 0, 2, budget_s=1.0)
agreement._poll_s = 0.0
def look():
    while not watch._stop.is_set(): stores[1].check(["no such key"])
watch = _Watch(look)
time.sleep(1.0)
raise SystemExit(3)
"""


@pytest.mark.parametrize("script", [IN_A_STAGE, IN_A_WARM_UP, AT_A_STORE])
def test_the_exit_status_is_the_scripts_own(script: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, "terminate" in done.stderr) == (3, False), done.stderr


def test_who_leaves_without_teardown_waits_for_no_thread() -> None:
    script = """
import time
from torchett.launch.standby.fast_exit import leave
from torchett.record.process import joined_threads as threads
threads._patience_s = 60
threads.begin_beside(time.sleep, 120, name="busy in C")
leave(3, lambda: None, [])
"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script])
    assert done.returncode == 3
    assert time.monotonic() - began < 30
