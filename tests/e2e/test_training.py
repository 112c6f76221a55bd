"""Real torchrun, two ranks, a rank killed on the way: the ledger explains all of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ETT = (sys.executable, "-m", "torchett.cli.main")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

pytestmark = pytest.mark.e2e


def train(folder: Path, *launcher: str, steps: int = 60, **more: str) -> dict[str, Any]:
    """The JSON report of a small GPT's training under `launcher`, killed 20 steps from its end."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("ETT_")}
    env |= {"ETT_RUNS": str(folder / "runs"), **more}
    script = (
        *(str(ROOT / "examples" / "gpt" / "train_ett.py"), "--no-compile", "--steps", f"{steps}"),
        *("--without", "interval", "--save-every", "15", "--kill-at", f"1:{steps - 20}"),
        *("--checkpoint-dir", str(folder / "ckpt")),
    )
    done = subprocess.run([*launcher, *script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    run = next((folder / "runs").iterdir())
    stages = said(*ETT, "startup", "show", str(run), "--json")["plan"]["stages"]
    found = said(*ETT, "report", str(run), "--json")
    return found | {"planned": {s["account"] for s in stages}, "stderr": done.stderr}


def said(*command: str) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check(found: dict[str, Any]) -> None:
    assert (found["ranks"], found["attempts"]) == (2, 2)
    assert found["last_step"] in (59, 299)
    assert found["failures"] == {"infra": 1, "scheduler": 0, "user": 0}
    assert sum(found["accounts"].values()) == pytest.approx(found["rank_seconds"], abs=1e-6)
    assert found["groups"]["unattributed"] < 0.10 * found["rank_seconds"]
    assert len(found["time_to_recover_s"]) == 1
    for account in ("effective", "unsaved", "imports", "checkpoint_restore",
                    "train_module_creation", "checkpoint_blocked", "final_checkpoint",
                    "teardown", "detect"):  # fmt: skip
        assert found["accounts"][account] > 0, account
    # The group may form while the model is made: then no instant of the ledger is its alone.
    planned = {"device_init", "preproc_creation", "train_module_creation", "process_group_init"}
    assert found["planned"] == planned
    # Who restarts at once leaves no gap: the next attempt's launcher_init begins there.
    assert {"restart_gap", "launcher_init"} & set(found["accounts"])
    assert "notes" not in found


def test_restarted_by_ett_run(tmp_path: Path) -> None:
    found = train(tmp_path, *ETT, "run", "--job", "gpt", "--max-restarts", "1", "--", *TORCHRUN)
    check(found)
    assert found["accounts"]["launcher_init"] > 0


@pytest.mark.parametrize("fork", ["1", "0"], ids=["forked", "spawned"])
def test_restarted_by_our_agent_on_standbys(fork: str, tmp_path: Path) -> None:
    """Imports are over before the attempt begins: the standby had made them."""
    launcher = (*ETT, "run", "--job", "gpt", "--", *TORCHRUN, "--max-restarts", "1")
    found = train(tmp_path, *launcher, steps=300, ETT_STANDBY_FORK=fork)
    check(found)
    said = found["stderr"], found["accounts"]
    assert found["accounts"]["imports"] < 0.1 * found["rank_seconds"], said


def test_restarted_by_a_stock_agent(tmp_path: Path) -> None:
    """The launcher sees one attempt; the ranks know that they were two."""
    launcher = (*ETT, "run", "--as-is", "--job", "gpt", "--", *TORCHRUN, "--max-restarts", "1")
    check(train(tmp_path, *launcher))


def test_without_ett_run_the_records_stand_alone(tmp_path: Path) -> None:
    check(train(tmp_path, *TORCHRUN, "--max-restarts", "1"))
