"""A notice while the loop evaluates for longer than the grace: what memory holds is saved."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from torchett.levers.checkpoint import Checkpointer

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
ckpt = ett.Checkpointer(sys.argv[1], every=1000, snapshot_every=2)
ckpt.restore(state)
for step in range(6):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    ckpt.step(step, state)
    ckpt._met.snapshots.wait()
    if size > 1:
        dist.barrier()
    while not ckpt._met.tier.is_settled():
        time.sleep(0.01)
print("weights", model[0].weight.sum().item(), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
until = time.monotonic() + 60
while time.monotonic() < until:
    with torch.no_grad():
        model(torch.randn(8, 4))
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loop_that_stands_is_saved_from_memory_within_the_grace(
    tmp_path: Path, ranks: int
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {k: v for k, v in os.environ.items() if k not in ("ETT_DISABLE", "ETT_NOTICE")}
    env |= {
        "ETT_GRACE_S": "30" if ranks == 2 else "10",
        "ETT_RUNS": str(tmp_path / "runs"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(21_000 + os.getpid() % 9_000),
        "WORLD_SIZE": str(ranks),
    }
    started = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "c")],
            env=env | {"RANK": str(rank)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    said = [process.communicate(timeout=100)[0] for process in started]
    assert [process.returncode for process in started] == [-15] * ranks, said
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    ckpt = Checkpointer(tmp_path / "c", every=1000, snapshot_every=None)
    assert ckpt.restore(state) == 6
    ckpt.close(final=False)
    assert f"weights {model[0].weight.sum().item()}" in said[0]
