"""`ett run --explain` and `--without`: what is changed here, and one switch for each."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def ett(*args: str, **env: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "torchett.cli.main", "run", *args]
    kept = {key: value for key, value in os.environ.items() if key != "ETT_WITHOUT"}
    return subprocess.run(command, env=kept | env, capture_output=True, text=True, timeout=240)


def levers(*args: str, **env: str) -> dict[str, dict[str, Any]]:
    done = ett("--explain", "--json", *args, **env)
    assert done.returncode == 0, done.stderr
    return {line["target"] or line["lever"]: line for line in json.loads(done.stdout)["levers"]}


CLEAR = "torch._dynamo.callback:callback_handler.clear"
AUTOTUNER = "torch._inductor.runtime.triton_heuristics:CachingAutotuner.benchmark_all_configs"
METRICS = "torch._dynamo.utils:add_compilation_metrics_to_chromium"


def test_every_row_is_listed_with_its_state_and_switch() -> None:
    pytest.importorskip("torch")
    from torchett.record.patch_table import TABLE

    found = levers("--no-pins", "--without", METRICS, "--compile-cache", "cache", "--", "true")
    assert {patch.target for patch in TABLE} <= found.keys()
    assert {"hang-timeout", "dynamic-sources"} <= found.keys()
    assert all(line["switch"] and line["reason"] for line in found.values())
    assert found[CLEAR]["on"]
    assert (found[AUTOTUNER]["on"], found[AUTOTUNER]["switch"]) == (False, "--no-pins")
    assert (found[METRICS]["on"], found[METRICS]["why"]) == (False, "--without or ETT_WITHOUT")
    assert not found["torch.utils.data._utils.worker:_worker_loop"]["on"]
    assert not levers("--", "true", ETT_WITHOUT="compile-watch")[METRICS]["on"]


def test_an_unknown_name_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    done = ett("--without", "compile_wach", "--", "true", ETT_RUNS=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "ett: ett run --without: no lever or target 'compile_wach': did you mean compile-watch?"
    ]
    assert not list(tmp_path.iterdir())


def test_what_is_left_out_is_told_to_the_job(tmp_path: Path) -> None:
    script = "import os; print(os.environ['ETT_WITHOUT'])"
    names = ["--without", "pins", "--without", METRICS]
    done = ett(*names, "--", sys.executable, "-c", script, ETT_RUNS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"pins,{METRICS}"
