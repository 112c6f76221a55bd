"""Libraries whose healthy ranks go on after a failure, with small stand-ins for the libraries.

The libraries themselves run in `benchmarks/replicas.py`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from trainers import environment

ETT = [sys.executable, "-m", "torchett.cli.main"]
TORCHFT = {
    "torchft/__init__.py": "",
    "torchft/manager.py": """
import time

class Manager:
    def __init__(self, plan):
        self.plan, self._step, self._healing, self.takes_part = plan, 0, False, True
    def current_step(self): return self._step
    def is_participating(self): return self.takes_part and not self._healing
    def start_quorum(self):
        self.outcome = self.plan.pop(0)
        self._healing = False
    def wait_quorum(self):
        if self.outcome[0] == "heal":
            self._healing, self._step = True, self.outcome[1]
        self.takes_part = self.outcome[0] != "spare"
        time.sleep(0.01)
    def should_commit(self):
        if self.outcome[0] == "refuse": return False
        self._step += 1
        return True
""",
    "torchft/optim.py": """
import time

class OptimizerWrapper:
    def __init__(self, manager): self.manager = manager
    def zero_grad(self): self.manager.start_quorum()
    def step(self):
        if self.manager.should_commit(): time.sleep(0.005)
""",
}
TRAIN = """
import sys, time
import torchett as ett
ett.init()
from torchft.manager import Manager
from torchft.optim import OptimizerWrapper
plan = [{plan}]
manager = Manager(plan)
optimizer = OptimizerWrapper(manager)
while plan:
    optimizer.zero_grad()
    manager.wait_quorum()
    time.sleep(0.02)
    optimizer.step()
"""
IN_PROCESS = {
    "nvidia_resiliency_ext/__init__.py": "",
    "nvidia_resiliency_ext/inprocess/__init__.py": "",
    "nvidia_resiliency_ext/inprocess/state.py": """
class State:
    fn_exception, active_rank = None, 0
    def advance(self): self.fn_exception = None
""",
    "nvidia_resiliency_ext/inprocess/monitor_process.py": """
class MonitorProcess:
    def record_interrupted(self, record=None): pass
""",
    "nvidia_resiliency_ext/inprocess/monitor_thread.py": """
class MonitorThread:
    def __init__(self): pass
    def shutdown(self): pass
""",
    "nvidia_resiliency_ext/inprocess/wrap.py": """
import time
from .monitor_process import MonitorProcess
from .monitor_thread import MonitorThread
from .state import State

def wrapped(train):
    state = State()
    while True:
        thread = MonitorThread()
        try:
            return train()
        except Exception as error:
            MonitorProcess().record_interrupted()
            thread.shutdown()
            state.fn_exception = error
        time.sleep(0.2)
        state.advance()
""",
}


def run(
    folder: Path, script: str, library: dict[str, str], launched: bool = False, **env: str
) -> None:
    for name, text in library.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "train.py").write_text(script)
    found = environment(folder / "runs") | {"ETT_JOB": "job"} | env
    done = subprocess.run(
        [*([*ETT, "run", "--"] if launched else []), sys.executable, "train.py"],
        env=found | {"PYTHONPATH": os.pathsep.join([str(folder), found.get("PYTHONPATH", "")])},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def shown(folder: Path, name: str = "job", *, text: bool = False) -> Any:
    found = subprocess.run(
        [*ETT, "report", name, *([] if text else ["--json"])],
        env=environment(folder / "runs"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout if text else json.loads(found.stdout)


def test_a_committed_step_is_a_step_a_refused_one_is_lost(tmp_path: Path) -> None:
    """
    step 0 ── step 1 ── step 2: refused ── step 2
    """
    run(tmp_path, TRAIN.format(plan='("go",), ("go",), ("refuse",), ("go",)'), TORCHFT)
    report = shown(tmp_path)
    assert report["last_step"] == 2
    assert report["attempts"] == 1
    assert report["accounts"]["effective"] >= 0.06
    assert 0.015 <= report["accounts"]["refused"] == report["groups"]["unsaved"]
    assert 0.03 <= report["accounts"]["regroup"] == report["groups"]["recover"]
    assert "warnings" not in report


def test_a_group_that_comes_back_takes_the_number_and_the_state_of_its_peers(
    tmp_path: Path,
) -> None:
    """
    attempt 0   0 1 2
    attempt 1           heals: 7 ── 8 ── 9      nothing is lost
    """
    run(tmp_path, TRAIN.format(plan='("go",), ("go",), ("go",)'), TORCHFT)
    run(tmp_path, TRAIN.format(plan='("heal", 7), ("go",), ("go",)'), TORCHFT, ETT_ATTEMPT="1")
    report = shown(tmp_path)
    assert report["last_step"] == 9
    assert report["groups"]["unsaved"] == 0
    assert report["accounts"]["regroup"] >= 0.02
    from torchett.runs.reader import RunReader

    attempts = RunReader(tmp_path / "runs" / "job").poll().job.attempts
    assert [attempt.resumed_from for attempt in attempts] == ["nothing", "peer"]


def test_a_script_that_records_its_steps_itself_keeps_them(tmp_path: Path) -> None:
    script = TRAIN.format(plan='("go",), ("refuse",), ("go",)').replace(
        "while plan:", "for _ in ett.steps(range(3)):"
    )
    run(tmp_path, script, TORCHFT)
    report = shown(tmp_path)
    assert report["last_step"] == 2
    assert "refused" not in report["accounts"]
    assert "leave ett.steps and ett.step out" in str(report["notes"])


def test_a_spare_replica_trains_nothing(tmp_path: Path) -> None:
    run(tmp_path, TRAIN.format(plan='("spare",), ("spare",)'), TORCHFT)
    report = shown(tmp_path)
    assert report["last_step"] is None
    assert report["accounts"]["other_in_loop"] >= 0.02


def test_a_library_that_is_not_understood_is_said_beside_the_headline(tmp_path: Path) -> None:
    """This torchft has no `should_commit`: its steps are not recorded."""
    other = TORCHFT | {
        "torchft/manager.py": TORCHFT["torchft/manager.py"].replace("should_commit", "commits"),
        "torchft/optim.py": TORCHFT["torchft/optim.py"].replace("should_commit", "commits"),
    }
    run(tmp_path, TRAIN.format(plan='("go",), ("go",)'), other)
    (warning,) = shown(tmp_path)["warnings"]
    assert warning.startswith("torchft restarts training inside processes")
    assert "torchft restarts training" in shown(tmp_path, text=True).splitlines()[1]


def test_a_library_without_an_adapter_is_said_as_well(tmp_path: Path) -> None:
    names = ("horovod/__init__.py", "horovod/torch/__init__.py", "horovod/torch/elastic.py")
    script = """
import horovod.torch.elastic
import torchett as ett
ett.init()
with ett.step(0): pass
"""
    run(tmp_path, script, dict.fromkeys(names, ""))
    assert "horovod.torch.elastic" in shown(tmp_path)["warnings"][0]


@pytest.mark.parametrize("launched", [False, True])
def test_a_restart_inside_the_process_is_an_attempt(launched: bool, tmp_path: Path) -> None:
    """
    attempt 0   0 1 2 3 4 ✗
    attempt 1         3 4 5 6 7
    """
    script = """
import time
from nvidia_resiliency_ext.inprocess.wrap import wrapped
import torchett as ett

lives = []

def train():
    ett.init()
    lives.append(1)
    first, last = (0, 5) if len(lives) == 1 else (3, 8)
    ett.resumed(first, "checkpoint" if first else "nothing")
    for step in range(first, last):
        with ett.step(step):
            time.sleep(0.02)
    if len(lives) == 1:
        raise ValueError("bad loss")

wrapped(train)
"""
    run(tmp_path, script, IN_PROCESS, launched)
    report = shown(tmp_path)
    assert report["attempts"] == 2
    assert report["failures"] == {"infra": 0, "scheduler": 0, "user": 1}
    assert report["last_step"] == 7
    assert report["groups"]["unsaved"] >= 0.04
    assert report["accounts"]["restart_gap"] >= 0.2
    assert "claimed rank" not in str(report.get("notes"))
    assert "ValueError: bad loss" in shown(tmp_path, text=True)


def test_a_source_that_is_none_is_no_reason_to_stop(tmp_path: Path) -> None:
    script = """
import torchett as ett
ett.init()
ett.resumed(5, "peers")
with ett.step(5): pass
"""
    run(tmp_path, script, {})
    assert shown(tmp_path)["last_step"] == 5


def test_groups_of_one_job_are_added_up_and_none_is_a_rival(tmp_path: Path) -> None:
    script = """
import time
import torchett as ett
ett.init()
for step in range(4):
    with ett.step(step): time.sleep(0.02)
"""
    for group in ("0", "1", "10"):
        run(tmp_path, script, {}, REPLICA_GROUP_ID=group)
    report = shown(tmp_path)
    groups = report["replica_groups"]
    assert list(groups) == ["0", "1", "10"]
    assert report["ranks"] == 3
    assert abs(report["rank_seconds"] - sum(g["rank_seconds"] for g in groups.values())) < 1e-6
    effective = sum(g["accounts"]["effective"] for g in groups.values())
    assert abs(report["accounts"]["effective"] - effective) < 1e-6
    assert "claimed rank" not in str(report.get("notes"))
    assert "3 replica groups" in shown(tmp_path, text=True)
    assert shown(tmp_path, "job.group-1")["ranks"] == 1
    other = subprocess.run(
        [*ETT, "export", "job", "--format", "events"],
        env=environment(tmp_path / "runs"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert other.returncode == 2
    assert "name one of them: job.group-0, job.group-1, job.group-10" in other.stderr


def test_one_launcher_may_start_all_groups(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("""
import torchett as ett
ett.init()
for step in range(4):
    with ett.step(step): pass
""")
    both = "REPLICA_GROUP_ID=0 $0 train.py & REPLICA_GROUP_ID=1 $0 train.py & wait"
    command = ["run", "--job", "job", "--progress", "0", "--", "bash", "-c", both, sys.executable]
    done = subprocess.run(
        [*ETT, *command], env=environment(tmp_path / "runs"), cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0
    report = shown(tmp_path)
    assert [g["last_step"] for g in report["replica_groups"].values()] == [3, 3]
