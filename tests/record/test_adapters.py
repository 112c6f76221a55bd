"""Each framework's example runs and leaves a ledger that knows its steps.

Runs what is installed; the others are skipped and say so.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "integrations"


def needs(framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")


def env(runs: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "SLURM_"))}
    return kept | {"ETT_RUNS": str(runs), "HF_HUB_OFFLINE": "1", "RAY_AUTH_MODE": "disabled"} | more


def ett(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchett.cli.main", *args],
        env=env(folder / "runs"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
    )


def run(folder: Path, example: str, *args: str) -> dict[str, Any]:
    """The ledger of an example under `ett run`."""
    done = ett(folder, "run", "--progress", "0", "--job", "x", "--", f"{EXAMPLES / example}", *args)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "is off" not in done.stderr
    return report(folder)


def report(folder: Path, job: str = "x") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ett(folder, "report", job, "--json").stdout)
    return found


def steps(folder: Path) -> list[tuple[int, int]]:
    """Attempt and number of every step, as recorded."""
    lines = map(json.loads, ett(folder, "export", "x").stdout.splitlines())
    return [(e["attempt"], e["step"]) for e in lines if e["event"] == "step"]


def saved(folder: Path) -> list[tuple[int, int]]:
    lines = map(json.loads, ett(folder, "export", "x").stdout.splitlines())
    return [(e["attempt"], e["step"]) for e in lines if e["event"] == "checkpoint"]


@pytest.mark.e2e
def test_lightning(tmp_path: Path) -> None:
    needs("lightning")
    found = run(tmp_path, "lightning_callback.py", "--folder", str(tmp_path))
    # 2 epochs of 16 batches, 2 of them to a step
    assert steps(tmp_path) == [(0, index) for index in range(16)]
    assert saved(tmp_path) == [(0, 3), (0, 7), (0, 11), (0, 15)]
    assert found["accounts"]["evaluation"] > 0
    assert found["accounts"]["checkpoint_blocked"] > 0
    again = ("--epochs", "3", "--folder", str(tmp_path), "--resume", f"{tmp_path}/step=12.ckpt")
    found = run(tmp_path, "lightning_callback.py", *again)
    assert steps(tmp_path)[16:] == [(1, index) for index in range(12, 24)]
    assert found["last_step"] == 23


@pytest.mark.e2e
def test_lightning_waits_between_accumulated_batches_are_waits(tmp_path: Path) -> None:
    needs("lightning")
    text = (EXAMPLES / "lightning_callback.py").read_text()
    text = text.replace(
        "data = DataLoader(TensorDataset(torch.randn(64, 32)), batch_size=4)",
        "data = DataLoader(Slow(torch.randn(64, 32)), batch_size=4)",
    )
    slow = "class Slow(TensorDataset):\n    def __getitem__(self, index):\n"
    slow += "        __import__('time').sleep(0.005)\n        return super().__getitem__(index)\n"
    (tmp_path / "train.py").write_text(text.replace("class Net", f"{slow}\n\nclass Net", 1))
    done = ett(tmp_path, "run", "--job", "x", "--no-hooks", "--", "train.py", "--epochs", "1")
    assert done.returncode == 0, done.stderr[-3000:]
    # 16 batches of 20 ms, of which one is the first
    assert report(tmp_path)["accounts"]["data_wait"] >= 15 * 0.02


@pytest.mark.e2e
def test_transformers(tmp_path: Path) -> None:
    needs("transformers")
    found = run(tmp_path, "transformers_callback.py", "--folder", str(tmp_path / "out"))
    assert steps(tmp_path) == [(0, index) for index in range(12)]
    assert saved(tmp_path) == [(0, 4), (0, 9), (0, 11)]
    assert found["accounts"]["evaluation"] > 0
    more = ("--folder", str(tmp_path / "out"), "--steps", "14", "--resume")
    run(tmp_path, "transformers_callback.py", *more)
    assert steps(tmp_path)[12:] == [(1, 12), (1, 13)]


@pytest.mark.e2e
def test_transformers_report_to_in_a_script_nobody_changed(tmp_path: Path) -> None:
    needs("transformers")
    text = (EXAMPLES / "transformers_callback.py").read_text()
    lines = [line for line in text.splitlines() if "EttCallback" not in line]
    (tmp_path / "train.py").write_text("\n".join(lines))
    from torchett.record.plugins import SITE

    path = os.pathsep.join([SITE, os.environ.get("PYTHONPATH", "")])
    plugins = {"ETT_PLUGINS": "torchett.record.adapters.transformers_plugin"}
    plugins |= {"PYTHONPATH": path, "ETT_JOB": "x"}
    done = subprocess.run(
        [sys.executable, "train.py"],
        env=env(tmp_path / "runs", **plugins),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert steps(tmp_path) == [(0, index) for index in range(12)]


@pytest.mark.e2e
def test_accelerate(tmp_path: Path) -> None:
    needs("accelerate")
    found = run(tmp_path, "accelerate_tracker.py", "--folder", str(tmp_path))
    # the hooks tell the first step: the tracker hears of one only when it is over
    assert steps(tmp_path) == [(0, index) for index in range(12)]
    assert saved(tmp_path) == [(0, 4), (0, 9)]
    assert found["accounts"]["checkpoint_blocked"] > 0


@pytest.mark.e2e
def test_torchrec(tmp_path: Path) -> None:
    needs("torchrec")
    run(tmp_path, "torchrec_pipeline.py")
    assert steps(tmp_path) == [(0, index) for index in range(12)]


@pytest.mark.e2e
def test_torchtitan(tmp_path: Path) -> None:
    needs("torchtitan")
    found = run(tmp_path, "torchtitan_handler.py")
    assert steps(tmp_path) == [(0, index) for index in range(1, 13)]
    assert saved(tmp_path) == [(0, 5), (0, 10)]
    took = {
        "process_group_init": 0.1, "checkpoint_restore": 0.1, "get_first_batch_data": 0.01,
        "data_wait": 0.11, "checkpoint_blocked": 0.06, "effective": 12 * 0.03,
    }  # fmt: skip
    for account, least in took.items():
        assert least <= found["accounts"][account] < 3 * least + 0.3, account


@pytest.mark.e2e
def test_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("deepspeed")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    found = run(tmp_path, "deepspeed_engine.py", "--folder", str(tmp_path / "saves"))
    assert steps(tmp_path) == [(0, index) for index in range(12)]
    assert saved(tmp_path) == [(0, 4), (0, 9)]
    assert found["accounts"]["checkpoint_blocked"] > 0


@pytest.mark.e2e
def test_ray_train(tmp_path: Path) -> None:
    needs("ray")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "ray_train.py"), "--folder", str(tmp_path / "ray")],
        env=env(tmp_path / "runs"),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = report(tmp_path, "ray-example")
    assert (found["ranks"], found["attempts"], found["last_step"]) == (2, 2, 14)
    assert found["failures"]["infra"] == 1
    assert found["accounts"]["unsaved"] > 0
