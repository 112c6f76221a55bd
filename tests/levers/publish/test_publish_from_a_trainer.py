"""A trainer gives its devices back and is published afterwards; or does it itself, and pays."""

import json
import os
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import ClassVar

import pytest
from publish_shelf import HERE

from torchett.levers.publish import trainer
from torchett.levers.publish.spool.job import PublishJob

pytestmark = pytest.mark.e2e

TRAINER = """
import os, sys
import torch
import torchett as ett

ett.init()
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
checkpoints = ett.Checkpointer(f"checkpoints-{sys.argv[2]}", every=1000)
state = {"model": model, "optimizer": optimizer}
for step in ett.steps(range(checkpoints.restore(state), 5)):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    checkpoints.step(step, state)
said = ett.publish(sys.argv[1], checkpoints, name="line", in_trainer=sys.argv[2] == "in")
print("publish gave", said)
"""


def test_both_ways_are_in_the_training_jobs_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    env = os.environ | {
        "ETT_RUNS": str(tmp_path / "runs"),
        "ETT_SPOOL": str(tmp_path / "spool"),
        "ETT_REGISTRY": str(tmp_path / "registry"),
    }

    def ett(*words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "torchett.cli.main", *words],
            env=env, cwd=tmp_path, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    recipe = f"{HERE}/small_models.py:line"
    gave = ett("run", "--job", "alone", "--", sys.executable, "train.py", recipe, "alone").stdout
    assert "publish gave line-" in gave
    report = json.loads(ett("report", "alone", "--json").stdout)
    assert report["accounts"].get("publish", 0) == 0
    assert any("not published yet" in line for line in report["asides"])

    ett("publish", "work", str(tmp_path / "spool"), "--drain", "--poll", "0.1")
    report = json.loads(ett("report", "alone", "--json").stdout)
    line = next(line for line in report["asides"] if line.startswith("published"))
    assert line.endswith("s after release, on CPU, as line@1")
    shown = json.loads(ett("publish", "show", "line@live", "--json").stdout)
    assert shown["job"]["job"] == "alone"
    assert shown["anchor"]["step"] == 4

    gave = ett("run", "--job", "held", "--", sys.executable, "train.py", recipe, "in").stdout
    assert "publish gave line@2" in gave
    report = json.loads(ett("report", "held", "--json").stdout)
    assert report["accounts"]["publish"] > 0
    assert any(line.startswith("published in the trainer as line@2") for line in report["asides"])


def test_a_spool_that_cannot_be_written_does_not_fail_the_training(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "spool").write_text("a file")
    done = subprocess.run(
        [sys.executable, "train.py", f"{HERE}/small_models.py:line", "alone"],
        env=os.environ | {"ETT_SPOOL": str(tmp_path / "spool"), "ETT_DISABLE": "1"},
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "publish gave None" in done.stdout
    assert "line is not published:" in done.stderr
    assert "by hand: ett publish add" in done.stderr


def test_what_compiles_in_the_trainer_is_not_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile on the trainer's thread begins later than `publish` and would take its seconds."""
    threads = []

    class Done:
        version = types.SimpleNamespace(label="line@1")
        timings: ClassVar[dict[str, float]] = {}

    def publish_job(job: object) -> Done:
        threads.append(threading.get_ident())
        return Done()

    monkeypatch.setattr("torchett.levers.publish.spool.publish_job.publish_job", publish_job)
    monkeypatch.setattr(trainer, "note", lambda kind, fact: None)
    job = PublishJob(name="line", recipe="r", anchor="a", registry="g", anchor_sha256="")
    assert trainer._publish_here(job) == "line@1"
    assert threads != [threading.get_ident()]
