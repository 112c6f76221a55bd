"""Every way to shard a job is restored bit by bit on any number of ranks, or refused in a line.

`./dev bench checkpoint_matrix` runs all of them from 1, 2, 3 and 4 ranks to 1, 2, 3 and 4.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

EVERYDAY = {
    "fully_shard, one and two dimensions": [
        "fsdp2:2:1", "fsdp2:2:3", "fsdp2_tp:4:4", "fsdp2_tp:4:2", "hsdp:2:1",
    ],
    "tensor parallel": ["tp:2:1", "tp_ddp:4:1"],
    "pipeline stages": ["pipeline:2:3", "pipeline:2:1", "pipeline_keys:2:1", "pipeline_fsdp2:4:2"],
    "what is the same on all ranks, or should be": ["ddp:2:2", "zero:2:3", "float8:2:1", "ema:2:1"],
    "what the ranks of a node divide": [
        "ddp_large:2:2", "ddp_large:2:1", "ddp_large:2:3", "ddp_large:4:4", "ddp_large:4:2",
        "ddp_large:1:2",
    ],
    "tables, tied and frozen weights, no state": ["sharded_tensor:2:1", "tied:2:1", "sgd:1:2"],
    "refused": [
        "fsdp1:2:2", "local_names:2:2", "local_names_fsdp2:4:4", "unnamed:2:2", "subclass:1:1",
        "listed:1:1",
    ],
}  # fmt: skip
if importlib.util.find_spec("torchdata") is not None:
    EVERYDAY["a StatefulDataLoader"] = ["torchdata:1:1", "torchdata:1:2"]


@pytest.mark.e2e
@pytest.mark.parametrize("kind", EVERYDAY)
def test_what_is_restored_is_what_was_saved(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, str(HERE / "shardings.py"), str(tmp_path), *EVERYDAY[kind]]
    env = {**os.environ, "ETT_DISABLE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    told = done.stdout.splitlines()
    assert len(told) == len(EVERYDAY[kind]), done.stdout
