"""Effective seconds beside stopwatches, and steps numbered alike with and without our lines."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "truth.py"
ENV = {
    **{key: value for key, value in os.environ.items() if not key.startswith("ETT_")},
    "OMP_NUM_THREADS": "1",
}
SCRIPT = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
IMPORT
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(100, 8), torch.randn(100, 1)), batch_size=1)
first = 0
if os.path.exists("c.pt"):
    state = torch.load("c.pt")
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"] + 1
for epoch in range(first, 5):
    for i, (x, y) in enumerate(STEPS):
        optimizer.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        time.sleep(0.01)
        loss.backward()
        optimizer.step()
        if epoch == 3 and i == 50 and not first:
            DIE
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, "c.pt")
"""
DEATHS = {
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "raised": "raise RuntimeError('no luck')",
}


def report(folder: Path, ours: bool, death: str) -> dict[str, Any]:
    """The report of a job of five epochs that saves after each, dies in the fourth and resumes."""
    folder.mkdir()
    text = SCRIPT.replace("IMPORT", "import torchett as ett" if ours else "")
    text = text.replace("STEPS", "ett.steps(loader)" if ours else "loader")
    (folder / "train.py").write_text(textwrap.dedent(text.replace("DIE", DEATHS[death])))
    ett = [sys.executable, "-m", "torchett.cli.main"]
    env = ENV | {"ETT_RUNS": str(folder / "runs")}
    run = [*ett, "run", "--job", "job", "--max-restarts", "1", "--", "train.py"]
    done = subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "recorded twice" not in done.stderr
    command = [*ett, "report", "job", "--json"]
    told = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(told.stdout)
    return result


@pytest.mark.parametrize("death", DEATHS)
def test_ett_steps_in_epochs_and_hooks_give_the_same_ledger(tmp_path: Path, death: str) -> None:
    """
    epoch 0 ▪ 1 ▪ 2 ▪ 3 ✗ │ load ▪ 3 ▪ 4 ▪       ▪: saved; 51 steps are lost, and done again

    The two are runs of their own: what other work did to one of them is not in the other.
    """
    apart = []
    for turn in range(3):
        folders = [tmp_path / f"{turn}-{own}" for own in (True, False)]
        ours, hooks = (report(f, own, death) for f, own in zip(folders, (True, False), strict=True))
        assert ours["last_step"] == hooks["last_step"] == 499
        apart.append(_beyond_two_points(ours, hooks))
        if not apart[-1]:
            return
    raise AssertionError(f"three times: {apart}")


def _beyond_two_points(ours: Any, hooks: Any) -> list[str]:
    """What differs by more than two points of all time, and what is not 51 of 500 steps."""
    wholes = [sum(told["accounts"].values()) for told in (ours, hooks)]
    start = abs(wholes[0] - wholes[1]) / max(wholes)  # what this machine made of the start-up
    found = []
    for account in ("effective", "unsaved"):
        a, b = (t["accounts"][account] / w for t, w in zip((ours, hooks), wholes, strict=True))
        if abs(a - b) >= 0.02 + start:
            found.append(f"{account} {a:.3f}, {b:.3f}")
    for told in (ours, hooks):
        lost = told["accounts"]["unsaved"] / told["accounts"]["effective"]
        if not 0.06 < lost < 0.15:
            found.append(f"unsaved is {lost:.3f} of effective")
    return found


def test_effective_seconds_are_those_of_a_stopwatch(tmp_path: Path) -> None:
    names = ["pause_at_the_end", "pause_before_a_forward", "no_loader_before", "accumulation",
             "own_steps", "pause_before_a_backward"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--json", *names], env=ENV, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = next(sheet for sheet in _lists(json.loads(done.stdout)) if "stopwatch_s" in sheet[0])
    assert [row["name"] for row in rows] == names
    assert [row["name"] for row in rows if not row["true"]] == []
    assert [row["name"] for row in rows if not row["within"]] == ["pause_before_a_backward"]


def _lists(node: Any) -> Any:
    """Every list of objects in a decoded JSON document."""
    if isinstance(node, list) and node and isinstance(node[0], dict):
        yield node
    for value in (
        node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    ):
        yield from _lists(value)
