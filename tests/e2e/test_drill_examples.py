"""The examples pass a drill: in a step, and while their loader waits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.e2e
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workload", ["gpt", "dlrm"])
def test_an_example_loses_nothing(workload: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torchett.cli.main", "drill", "preempt", "--json"]
    command += ["--moment", "step", "--moment", "data_wait", "--grace", "40s"]
    command += ["--keep", str(tmp_path / "drills"), "--", sys.executable]
    command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    command += [str(ROOT / f"examples/{workload}/train_ett.py"), "--no-compile"]
    command += ["--steps=100000", "--save-every=50", "--without=interval"]
    command += [f"--checkpoint-dir={tmp_path / 'checkpoints'}"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    rows = {row["moment"]: row for row in json.loads(done.stdout)["drills"]}
    assert done.returncode == 0, rows
    assert rows["step"]["durable_step"] == rows["step"]["last_step"]
    # The loader's workers go on after a quarter of the grace: the save is made right then.
    assert rows["data_wait"]["durable_step"] == rows["data_wait"]["last_step"]
    assert rows["data_wait"]["durable_after_s"] is not None
