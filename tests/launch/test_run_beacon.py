"""A job's beacon, read from its records while it runs, and where it is published."""

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from torchett.cli.main import main
from torchett.launch.scheduler.beacon_objects import (
    kueue_annotation,
    kueue_spec,
    volcano_annotation,
)
from torchett.launch.scheduler.beacon_watch import look_s, tell_slurm
from torchett.launch.scheduler.run_beacon import RunBeacon
from torchett.model.beacon import Beacon, slurm_comment
from torchett.record.beacon import read_beacon
from torchett.runs import events
from torchett.runs.imported import write_run
from torchett.runs.reader import RunReader

BEACON = Beacon(
    job="j", gpus=8, durable_step=5, durable_s=1e9, save_s=3.0, restart_s=60.0, preemptions=1
)


def run_of(folder: Path, *facts: dict[str, Any]) -> Path:
    """A run of these events, on one rank."""
    file = folder / "events.jsonl"
    head = {"event": "job", "format": "events/1", "job": "j", "ranks": 1}
    file.write_text("".join(json.dumps(fact) + "\n" for fact in (head, *facts)))
    write_run(events.read(file), folder / "run")
    return folder / "run"


def step(attempt: int, number: int, t0: float) -> dict[str, Any]:
    return {"event": "step", "attempt": attempt, "rank": 0, "step": number, "t0": t0, "t1": t0 + 1}


def blocked(attempt: int, t0: float) -> dict[str, Any]:
    fact = {"event": "span", "attempt": attempt, "rank": 0, "account": "checkpoint_blocked"}
    return {**fact, "t0": t0, "t1": t0 + 0.5}


FIRST = [
    {"event": "attempt_start", "attempt": 0, "t": 100.0, "allocated": 100.0, "submitted": 90.0},
    *(step(0, number, 120.0 + 2 * number) for number in range(20)),
    blocked(0, 129.0),  # after step 4, which ends at 129
    {"event": "checkpoint", "attempt": 0, "step": 4, "durable": 132.0},
    blocked(0, 139.0),  # after step 9
    {"event": "checkpoint", "attempt": 0, "step": 9, "durable": 142.0},
]


def test_a_beacon_tells_what_is_safe_what_a_save_costs_and_when_the_next_is_due(
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path, *FIRST, {"event": "now", "t": 160.0})
    found = RunBeacon(RunReader(run)).read()
    assert found is not None
    zero = found.durable_s - 139.0  # step 9 ended
    assert found.durable_step == 9
    assert found.save_s == pytest.approx(3.0)  # 0.5 blocked and 2.5 until durable
    assert found.due_s is not None
    # The next save begins 9.5 s after the last one blocked no more, and is durable 3 s later.
    assert found.due_s - zero == pytest.approx(139.0 + 9.5 + 0.5 + 3.0)
    assert found.restart_s == pytest.approx(20.0)
    assert (found.preemptions, found.saves_on_signal) == (0, False)


def test_an_attempt_that_resumed_has_nothing_to_lose_from_before_it_began(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        *FIRST,
        {"event": "attempt_end", "attempt": 0, "t": 165.0, "outcome": "preempted"},
        {"event": "attempt_start", "attempt": 1, "t": 200.0, "allocated": 195.0},
        *(step(1, 10 + number, 215.0 + 2 * number) for number in range(3)),
        {"event": "now", "t": 221.0},
    )
    found = RunBeacon(RunReader(run)).read()
    assert found is not None
    assert (found.durable_step, found.preemptions) == (9, 1)
    assert found.restart_s == pytest.approx(20.0)
    assert found.cost_gpu_s(found.durable_s + 6) == pytest.approx(6 + 20.0 * 2)


def test_a_job_that_has_saved_nothing_loses_all_since_it_trains(tmp_path: Path) -> None:
    run = run_of(tmp_path, FIRST[0], step(0, 0, 120.0), {"event": "now", "t": 160.0})
    found = RunBeacon(RunReader(run)).read()
    assert found is not None
    assert (found.durable_step, found.save_s, found.due_s) == (-1, 0.0, None)


@pytest.mark.parametrize(
    ("form", "key"),
    [("json", "format"), ("kueue", "metadata"), ("kueue-spec", "spec"), ("volcano", "metadata")],
)
def test_the_command_prints_each_form(tmp_path: Path, form: str, key: str) -> None:
    run = run_of(tmp_path, *FIRST, {"event": "now", "t": 160.0})
    done = CliRunner().invoke(main, ["schedule", "beacon", str(run), "--form", form])
    assert key in json.loads(done.output)


def test_objects_merged_into_a_jobs_own_are_valid_kubernetes() -> None:
    """As far as the schemas of Kubernetes itself reach: metadata of any object is alike."""
    validate = pytest.importorskip("kubernetes_validate").validate
    containers = [{"name": "a", "image": "b"}]
    template = {"spec": {"containers": containers, "restartPolicy": "Never"}}
    for patch in (kueue_annotation(BEACON, 1e9 + 60), volcano_annotation(BEACON)):
        job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": template}}
        validate({**job, "metadata": {"name": "j", **patch["metadata"]}}, "1.30", strict=True)
    bad = {"metadata": {"name": "j", "annotations": {"kueue.x-k8s.io/priority-boost": 6}}}
    with pytest.raises(Exception, match="string"):  # a number is refused: ours is text
        validate({**job, **bad}, "1.30", strict=True)
    boost = kueue_spec(BEACON, 1e9 + 60)["spec"]["priorityBoost"]
    assert isinstance(boost, int)
    assert -(2**31) <= boost < 2**31


def fake_slurm(folder: Path, comment: str) -> dict[str, str]:
    for name, answer in (("squeue", f"echo '{comment}'"), ("scontrol", ":")):
        path = folder / name
        path.write_text(f'#!/bin/bash\necho {name} "$@" >> {folder}/asked\n{answer}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("known", "told"), [("(null)", True), ("ett:step=1", True), ("mine", False)]
)
def test_slurm_is_told_by_the_comment_unless_the_user_has_one(
    known: str, told: bool, tmp_path: Path
) -> None:
    tell_slurm(BEACON, fake_slurm(tmp_path, known))
    asked = (tmp_path / "asked").read_text()
    assert (f"scontrol update jobid=7 comment={slurm_comment(BEACON)}" in asked) == told


def test_no_scheduler_no_beacon() -> None:
    assert look_s({}) == 0.0
    assert look_s({"SLURM_JOB_ID": "7"}) == 10.0
    assert look_s({"SLURM_JOB_ID": "7", "ETT_BEACON_S": "0"}) == 0.0
    assert look_s({"ETT_BEACON_S": "2"}) == 2.0


TRAINER = """
import time, torchett as ett
for step in ett.steps(range(1000)):
    time.sleep(0.02)
    if step == 20:
        ett.checkpoint_durable(19)
"""


@pytest.mark.timeout(60)
def test_ett_run_keeps_the_file_and_the_comment_fresh(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "bin").mkdir()
    env = os.environ | fake_slurm(tmp_path / "bin", "(null)")
    env |= {"ETT_RUNS": str(tmp_path / "runs"), "ETT_BEACON_S": "0.2", "ETT_JOB": "j"}
    command = [sys.executable, "-m", "torchett.cli.main", "run", "--progress", "0", "--"]
    running = subprocess.Popen([*command, str(tmp_path / "train.py")], env=env)
    try:
        path, over = tmp_path / "runs" / "j" / "beacon.json", threading.Event()
        for _ in range(300):
            if path.exists() and read_beacon(path).durable_step == 19:
                break
            over.wait(0.1)
        assert read_beacon(path).durable_step == 19
        over.wait(0.5)
        assert "comment=ett:step=19;" in (tmp_path / "bin" / "asked").read_text()
    finally:
        running.terminate()
        running.wait(20)
