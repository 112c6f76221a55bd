"""A notice while the loop evaluates or compiles: what it stands at is saved."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchett.checkpoint import Checkpointer, fence
from torchett.checkpoint.standstill import unlike_its_last_step


class Loader:
    """Has a state, and moves on."""

    def state_dict(self) -> dict[str, Any]:
        return {"at": 7}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.fixture(autouse=True)
def _unrecorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETT_DISABLE", "1")


@pytest.fixture
def optimizer() -> Iterator[torch.optim.Optimizer]:
    """One whose steps the fence sees; none has been seen so far."""
    fence.install()
    fence.forget()
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    yield torch.optim.SGD([weight], lr=0.1)
    fence.forget()


def test_weights_alone_are_those_of_the_last_step(optimizer: torch.optim.Optimizer) -> None:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    state = {"model": nn.Linear(2, 2), "optimizer": optimizer, "scheduler": scheduler}
    assert unlike_its_last_step(state) is None
    optimizer.step()
    assert unlike_its_last_step(state) == "an optimizer has stepped since"


def test_buffers_and_loaders_may_have_moved_on_but_not_while_it_evaluates() -> None:
    fence.forget()
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert "model has buffers" in (unlike_its_last_step({"model": model}) or "")
    state = {"model": nn.Linear(2, 2), "loader": Loader()}
    assert unlike_its_last_step(state) == "loader may have moved on"
    model.eval()
    assert unlike_its_last_step({"model": model, "loader": Loader()}) is None
    assert unlike_its_last_step({"loader": Loader()}) == "loader may have moved on"


def test_no_optimizer_steps_while_it_is_saved(optimizer: torch.optim.Optimizer) -> None:
    thread = threading.Thread(target=optimizer.step)
    with fence.no_steps():
        thread.start()
        time.sleep(0.1)
        assert thread.is_alive()
        assert optimizer.param_groups[0]["params"][0].tolist() == [0.0, 0.0]
    thread.join(10)
    assert optimizer.param_groups[0]["params"][0].tolist() == pytest.approx([-0.1, -0.1])


SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
import torchett as ett
torch.set_num_threads(1)
rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if size > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = {"model": model, "optimizer": optimizer}
ckpt = ett.Checkpointer(sys.argv[1], every=1000)
ckpt.restore(state)
for step in range(6):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    ckpt.step(step, state)
print("weights", model[0].weight.sum().item(), flush=True)
if sys.argv[2] == "evaluates":
    model.eval()
os.kill(os.getpid(), signal.SIGTERM)
until = time.monotonic() + 60
while time.monotonic() < until:
    with torch.no_grad():
        model(torch.randn(8, 4))
"""


def notice(tmp_path: Path, what: str, ranks: int) -> list[tuple[int, str]]:
    """Exit status and output of each rank, told to end within seconds while it does `what`."""
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {k: v for k, v in os.environ.items() if k not in ("ETT_DISABLE", "ETT_NOTICE")}
    grace_s = 4 if ranks == 1 else 16  # several upload by processes, which have to start first
    env |= {
        "ETT_GRACE_S": str(grace_s),
        "ETT_RUNS": str(tmp_path / "runs"),
        "MASTER_ADDR": "127.0.0.1",
    }
    env |= {"MASTER_PORT": str(20_000 + os.getpid() % 10_000), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "c"), what]
    started = [
        subprocess.Popen(
            command, env=env | {"RANK": str(rank)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    return [(p.returncode, said) for p in started for said in [p.communicate(timeout=60)[0]]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_job_that_evaluates_is_saved_within_the_grace(tmp_path: Path, ranks: int) -> None:
    ended = notice(tmp_path, "evaluates", ranks)
    assert [code for code, _ in ended] == [-15] * ranks, ended
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    ckpt = Checkpointer(tmp_path / "c", every=1000)
    assert ckpt.restore(state) == 6
    ckpt.close(final=False)
    assert f"weights {model[0].weight.sum().item()}" in ended[0][1]


def test_a_forward_pass_of_training_is_not_mistaken_for_standing_still(tmp_path: Path) -> None:
    ((code, said),) = notice(tmp_path, "trains", 1)
    assert code == -15
    assert "step 5 is not saved while the loop stands: model has buffers" in said
    assert not list((tmp_path / "c").glob("step-*"))
