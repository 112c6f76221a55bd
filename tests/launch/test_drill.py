"""`ett drill preempt` on small trainers: the signal falls where it was asked for."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchett.runs.reader import RunReader

TRAINER = """
import os, pathlib, signal, sys, time, torchett as ett

folder, saves = pathlib.Path(sys.argv[1]), "never" not in sys.argv
told = []
if saves:
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    signal.signal(signal.SIGUSR1, lambda number, frame: told.append(number))
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
known = folder / "step"
first = int(known.read_text()) + 1 if known.exists() else 0
if "slow" in sys.argv:
    with ett.stage("pre_train"):
        time.sleep(1.0)

def save(step):
    with ett.blocked("checkpoint_blocked"):
        time.sleep(0.1)
        known.write_text(str(step))
    ett.checkpoint_durable(step)

for step in ett.steps(range(first, 100_000), start=first):
    time.sleep(0.01)
    if step % 20 == 15:
        with ett.blocked("evaluation"):
            time.sleep(0.3)
    if told:
        save(step)
        from torchett.record.api import last_step
        last_step(step)
        os._exit(7)
    if saves and step % 30 == 29:
        save(step - 1)  # of the step before: this one is not over
"""
pytestmark = pytest.mark.timeout(600)


def drill(
    folder: Path,
    *words: str,
    trainer: tuple[str, ...] = (),
    grace: str = "15s",  # a loaded machine takes seconds to leave
    within: str = "90s",
) -> tuple[int, dict[str, Any]]:
    (folder / "train.py").write_text(TRAINER)
    command = [sys.executable, "-m", "torchett.cli.main", "drill", "preempt", "--json"]
    command += ["--grace", grace, "--within", within, "--keep", str(folder / "drills"), *words]
    command += ["--", sys.executable, str(folder / "train.py"), str(folder), *trainer]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    if done.returncode == 2:
        return 2, {"said": done.stderr}
    found = json.loads(done.stdout)["drills"]
    return done.returncode, {row["moment"]: row for row in found}


def test_a_job_that_saves_passes_in_every_moment_that_it_has(tmp_path: Path) -> None:
    words = [word for name in ("step", "evaluation", "save") for word in ("--moment", name)]
    code, rows = drill(tmp_path, *words)
    assert code == 0, rows
    for row in rows.values():
        assert (row["passed"], row["lost_steps"]) == (True, 0)
        assert 0 <= row["durable_after_s"] <= row["left_after_s"] <= 15


def test_a_job_that_never_saves_fails_and_is_told_so(tmp_path: Path) -> None:
    code, rows = drill(tmp_path, "--moment", "step", trainer=("never",))
    assert code == 1
    assert rows["step"]["said"] == "no checkpoint became durable"
    assert rows["step"]["lost_steps"] >= 5


def test_a_job_that_does_not_leave_is_killed_when_its_grace_is_over(tmp_path: Path) -> None:
    code, rows = drill(tmp_path, "--moment", "step", trainer=("never", "deaf"), grace="4s")
    assert code == 1
    assert rows["step"]["left_after_s"] is None
    assert rows["step"]["said"].startswith("did not leave")


def test_nothing_is_lost_in_a_start_up(tmp_path: Path) -> None:
    code, rows = drill(tmp_path, "--moment", "start_up", trainer=("slow", "never"))
    assert code == 0, rows
    assert rows["start_up"]["said"] == "nothing to save yet"


def test_a_moment_that_was_asked_for_and_does_not_come_is_a_failure(tmp_path: Path) -> None:
    """A job without workers of a loader cannot be made to wait for data."""
    code, rows = drill(tmp_path, "--moment", "data_wait", within="20s", grace="4s")
    assert code == 1
    assert not rows["data_wait"]["seen"]


def test_the_signal_falls_into_the_save(tmp_path: Path) -> None:
    drill(tmp_path, "--moment", "save", "--signal", "USR1", "--to", "launcher")
    reader = RunReader(tmp_path / "drills" / "save").poll()
    assert len(list(reader.checkpoints())) == 2  # the one under way, and the one after the signal


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    code, rows = drill(tmp_path, grace="soon")
    assert code == 2
    assert "--grace" in rows["said"]
    (tmp_path / "drills" / "step").mkdir(parents=True)
    code, rows = drill(tmp_path, "--moment", "step")
    assert code == 2
    assert "expected a folder without earlier drills, found step" in rows["said"]
    said = subprocess.run(
        [sys.executable, "-m", "torchett.cli.main", "drill", "preempt"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (said.returncode, said.stderr.count("\n")) == (2, 1)
    assert "ett drill preempt: expected a command after --, found none" in said.stderr
