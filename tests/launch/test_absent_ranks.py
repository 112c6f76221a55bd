"""Under `ett run` the flight recorder's dumps lie in the run, and name the rank that is absent."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
ETT = [sys.executable, "-m", "torchett.cli.main"]
# torch's watchdog of NCCL writes this file on a time-out; gloo has none, so the script does it.
SCRIPT = """
import datetime, os, time
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
for _ in range(3):
    dist.all_reduce(torch.ones(4))
try:
    if rank == 2:
        time.sleep(3)
    else:
        dist.all_reduce(torch.ones(4))
finally:
    with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank), "wb") as file:
        file.write(_dump_fr_trace())
time.sleep(20)
"""


def test_the_rank_that_the_others_wait_for_began_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "SLURM_", "TORCH_"))}
    env = kept | {"ETT_RUNS": str(tmp_path / "runs"), "TORCH_FR_BUFFER_SIZE": "100"}
    command = [*ETT, "run", "--job", "a", "--max-restarts", "1", "--progress", "0", "--"]
    command += [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=3", "train.py"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    shown = json.loads(subprocess.check_output([*ETT, "report", "a", "--json"], env=env))
    first = shown["restarts"][0]
    assert (first["rank"], first["outlook"]) == (2, "restart-now"), done.stderr
    said = subprocess.check_output([*ETT, "failure", "classify", "a", "--json"], env=env)
    verdict = json.loads(said)
    assert verdict["absent_ranks"] == [2]
    assert verdict["initiating_ranks"] == [2]
