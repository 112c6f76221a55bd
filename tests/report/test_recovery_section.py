"""The recovery waterfall as it is drawn and as JSON, and of a real job that was killed."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console, Group

from torchett.ledger.rules.recovery_stages import Recovery
from torchett.report.sections.recoveries import recoveries_json, recovery_section

START = Recovery(
    failed=None, resumed=0, rank=0, stages={"imports": 1_900_000_000}, first_step_ns=80_000_000
)
AGAIN = Recovery(
    failed=0,
    resumed=1,
    rank=1,
    stages={"detect": 300_000_000, "imports": 4_100_000_000, "restore": 2_000_000_000},
    first_step_ns=70_000_000,
)
READ = {1: {"bytes": 3_000_000_000, "tier": "/ckpt", "step": 7}}


def test_the_drawing_names_the_slowest_and_what_was_read() -> None:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(Group(*recovery_section([START, AGAIN], READ)))
    lines = console.export_text().splitlines()
    assert lines[0].split() == ["recovery", "in", "attempt", "1", "6.4", "s", "first", "start"]
    rows = {line.split("  ")[1].strip(): line for line in lines[1:] if line.strip()}
    assert "4.1 s" in rows["imports"]
    assert "1.9 s" in rows["imports"]
    assert rows["imports"].rstrip().endswith("slowest")
    assert "3 GB, 1.50 GB/s, from /ckpt" in rows["restore"]
    assert rows["detect"].index("█") < rows["imports"].index("█") < rows["restore"].index("█")


def test_the_first_start_alone_is_no_recovery() -> None:
    assert recovery_section([START], {}) == []
    assert recoveries_json([START], {}) == []


def test_as_json_each_has_the_one_before_beside_it() -> None:
    (shown,) = recoveries_json([START, AGAIN], READ)
    assert shown["total_s"] == pytest.approx(6.4)
    assert shown["slowest"] == "imports"
    assert shown["before"] == {"imports": 1.9}
    assert shown["restore"] == {
        "bytes": 3_000_000_000, "tier": "/ckpt", "step": 7, "gb_per_s": 1.5
    }  # fmt: skip


TRAIN = """
import os, signal
import torch, torchett as ett
ett.init()
model = torch.nn.Linear(256, 256)
state = {"model": model}
ckpt = ett.Checkpointer("ckpt", every=4)
first = ckpt.restore(state)
for step in range(first, 12):
    with ett.step(step):
        model(torch.ones(1, 256)).sum().backward()
    ckpt.step(step, state)
    if step == 6 and first == 0:
        ckpt.wait()
        os.kill(os.getpid(), signal.SIGKILL)
ckpt.close()
"""


@pytest.mark.e2e
def test_the_stages_of_a_real_recovery_sum_to_time_to_recover(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "SLURM_"))}
    env = kept | {"ETT_RUNS": str(tmp_path / "runs")}
    ett = [sys.executable, "-m", "torchett.cli.main"]
    command = [*ett, "run", "--job", "a", "--max-restarts", "1", "--", sys.executable, "train.py"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = json.loads(subprocess.check_output([*ett, "report", "a", "--json"], env=env))
    (recovery,) = shown["recovery_stages"]
    assert recovery["total_s"] == pytest.approx(shown["time_to_recover_s"][0], abs=1e-6)
    assert {"detect", "stop", "imports", "restore"} <= set(recovery["stages"])
    assert recovery["restore"]["bytes"] > 256 * 256 * 4
    assert recovery["restore"]["tier"] in ("memory", "durable")
    assert signal.Signals.SIGKILL.name in json.dumps(shown["restarts"])
