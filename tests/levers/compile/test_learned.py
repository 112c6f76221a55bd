"""The dynamic sources of a workload are stored, and used by its next job."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchett.levers.compile.doctor.learned import Workload, learn, learned, workload_path


def test_the_same_script_is_the_same_workload_whatever_its_options(tmp_path: Path) -> None:
    script = str(tmp_path / "train.py")
    plain = workload_path(tmp_path, ["python", script, "--lr", "1"])
    assert plain == workload_path(tmp_path, ["torchrun", "--nproc-per-node", "2", script])
    assert plain != workload_path(tmp_path, ["python", str(tmp_path / "other.py")])
    module = workload_path(tmp_path, ["python", "-m", "pack.train", "--lr", "1"])
    assert module == workload_path(tmp_path, ["torchrun", "-m", "pack.train"])
    assert module.name.startswith("train-")


def test_sources_are_merged_and_a_damaged_file_is_empty(tmp_path: Path) -> None:
    path = workload_path(tmp_path, ["train.py"])
    assert learned(path) == Workload()
    learn(path, ["train.py"], Workload(dynamic={"L['x']": [0]}))
    learn(path, ["train.py"], Workload(dynamic={"L['x']": [1], "L['n']": None}))
    learn(path, ["train.py"], Workload(unbacked={"L['x']": [0]}))
    known = Workload(dynamic={"L['n']": None, "L['x']": [0, 1]}, unbacked={"L['x']": [0]})
    assert learned(path) == known
    assert known.settings({"TORCH_COMPILE_DYNAMIC_SOURCES": "mine"}, by_dimension=False) == {
        "TORCH_COMPILE_DYNAMIC_SOURCES": r"mine,L\['n'\]$",
        "TORCH_COMPILE_UNBACKED_SOURCES": r"L\['x'\]$",
    }
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    for damage in ("", "{", "[]", '{"format": "workload/1"}', '{"format": "workload/9"}'):
        path.write_text(damage)
        assert learned(path) == Workload()


SCRIPT = """
import sys, torch
def f(x, n): return (x * n).sum()
g = torch.compile(f, backend="eager")
for n in (2, 3, 4, 5): g(torch.ones(n + 2), n)
"""


@pytest.mark.e2e
def test_after_one_job_the_next_one_compiles_once(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    env = os.environ | {"ETT_RUNS": str(tmp_path / "runs")}
    env.pop("TORCH_COMPILE_DYNAMIC_SOURCES", None)

    def ett(*args: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "torchett.cli.main", *args]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done

    graphs = []
    for job in ("first", "second"):
        said = ett("run", "--job", job, "--dynamic-sources", "auto", "--", str(script)).stderr
        assert ("2 dynamic sources are kept" in said) is (job == "first")
        graphs.append(json.loads(ett("report", job, "--json").stdout)["compile"]["graphs"])
    assert graphs == [2, 1]


@pytest.mark.e2e
def test_apply_runs_before_and_after_and_keeps_what_helped(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        SCRIPT.replace("(2, 3, 4, 5)", "(4, 5, -1, 6)").replace(", n)\n", ", 2)\n")
        + 'print("the command\'s own words")\n'
    )
    env = os.environ | {"ETT_RUNS": str(tmp_path / "runs")}
    command = [sys.executable, "-m", "torchett.cli.main", "compile", "doctor", "--json", "--apply"]
    done = subprocess.run(
        [*command, "--", str(script)], env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "the command's own words" in done.stderr
    found = json.loads(done.stdout)
    assert {name: side["graphs"] for name, side in found["sides"].items()} == {
        "as it is": 3, "dynamic": 2, "unbacked": 1,  # a size of 1 is a graph of its own
    }  # fmt: skip
    assert learned(workload_path(tmp_path / "runs", [str(script)])) == Workload(
        dynamic={"L['x']": [0]}, unbacked={"L['x']": [0]}
    )
