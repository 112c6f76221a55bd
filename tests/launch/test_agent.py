"""The agent's own seams in torch's."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchett.launch.elastic.agent import _ranks_asked_for, _why_no_standbys
from torchett.launch.elastic.journal import Journal
from torchett.launch.standby import pool
from torchett.launch.standby.refill import Refill
from torchett.record.patches import Installed

rendezvous = pytest.importorskip("torch.distributed.elastic.rendezvous.dynamic_rendezvous")


def test_one_node_alone_does_not_pause_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchett.launch.elastic import elastic_agent

    installed: list[Installed | None] = []
    install = elastic_agent.install
    monkeypatch.setattr(elastic_agent, "install", lambda *a: installed.append(install(*a)))
    made: list[float] = []
    elastic_agent._start_rendezvous_at_once()
    try:
        monkeypatch.setattr(elastic_agent.time, "sleep", made.append)
        rendezvous._delay((0, 0.3))
        rendezvous._delay(1.0)
    finally:
        installed[0].remove()  # type: ignore[union-attr]
    assert made == [1.0]


# torch looks whether a rank lives, says so, and then asks it to end: here it is gone by then.
LEAVES_BEFORE_IT_IS_ASKED = """
import os, sys, time
from torch.distributed.elastic.multiprocessing import api
from torchett.launch.elastic import agent

def until_it_is_gone(_, pid, *__):
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        time.sleep(0.01)
    print("gone", flush=True)

api.logger.warning = until_it_is_gone
agent.main(["--nproc-per-node=2", "--max-restarts=1", "--standalone", sys.argv[1]])
"""
RANKS_LEAVE = """
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(int(os.environ["RANK"]))
    sys.exit(3)
"""


def test_a_rank_that_leaves_before_it_is_asked_to_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS_LEAVE)
    command = [sys.executable, "-c", LEAVES_BEFORE_IT_IS_ASKED, "ranks.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "gone\n"), done.stderr


class Counted:
    """Standbys that are only counted; a journal that says whether ranks train."""

    def __init__(self) -> None:
        self.filled, self.trains = 0, False

    def fill(self, spare: bool = False) -> None:
        assert spare
        self.filled += 1

    def training(self, pids: dict[int, int]) -> bool:
        return self.trains


@pytest.mark.parametrize(("cores", "at_once"), [(8, True), (7, False)])
def test_with_cores_to_spare_standbys_are_replaced_at_once_else_when_ranks_train(
    cores: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(cores)})
    clock = [100.0]
    ours = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr("torchett.launch.standby.refill.time", ours)
    counted = Counted()
    refill = Refill(counted, counted)  # type: ignore[arg-type]
    refill.started(2)
    assert counted.filled == at_once
    for counted.trains in (False, True, True):
        clock[0] += 2.0
        refill.look({})
        assert counted.filled == (at_once or counted.trains)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "ForkedStandbys"),
        ({"ETT_STANDBY_FORK": "0"}, "SpawnedStandbys"),
        ({"ETT_STANDBY_MODEL": "1"}, "SpawnedStandbys"),
        ({"OMP_NUM_THREADS": "2"}, "SpawnedStandbys"),
    ],
)
def test_ranks_are_forked_only_where_a_process_can_be_shared(
    changes: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchett.launch.standby import forked, spawned

    monkeypatch.setattr(forked.ForkedStandbys, "import_and_fork", lambda self: None)
    monkeypatch.setattr(spawned.SpawnedStandbys, "fill", lambda self: None)
    env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | changes
    assert type(pool.start_pool(2, env)).__name__ == kind


@pytest.mark.parametrize(
    ("argv", "ranks"),
    [
        (["--nproc-per-node=3", "x.py"], 3),
        (["--nproc_per_node", "2", "x.py"], 2),
        (["x.py", "--nproc-per-node=3"], 1),
        (["--nproc-per-node=auto", "x.py"], 0),
        (["--nproc-per-node", "gpu", "x.py"], 0),
    ],
)
def test_how_many_ranks_there_will_be(
    argv: list[str], ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PET_NPROC_PER_NODE", raising=False)
    assert _ranks_asked_for(argv) == ranks


@pytest.mark.parametrize(
    ("entrypoint", "args", "options", "why"),
    [
        (sys.executable, ("-u", "x.py"), {}, None),
        (sys.executable, ("-u", "-m", "x"), {}, None),
        (sys.executable, ("-u", "-c", "1"), {}, "not a script"),
        (sys.executable, ("x.py",), {}, "not a script"),
        ("bash", ("x.sh",), {}, "not a script"),
        (print, ("x.py",), {}, "--run-path"),
        (sys.executable, ("-u", "x.py"), {"numa_options": object()}, "bound to NUMA nodes"),
        (sys.executable, ("-u", "x.py"), {"virtual_local_rank": True}, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_standbys_cannot_run(
    entrypoint: Any, args: tuple[str, ...], options: dict[str, Any], why: str | None
) -> None:
    found = _why_no_standbys(SimpleNamespace(**options), entrypoint, args)
    assert found is None if why is None else why in str(found)


def test_a_killed_rank_is_the_first_cause_not_the_peer_that_failed_of_it(tmp_path: Path) -> None:
    """All ends of one look are written down; the restart's cause is the end they followed from."""

    def causes(ends: dict[int, int]) -> tuple[list[tuple[int, str]], str]:
        run = tmp_path / str(len(list(tmp_path.iterdir())))
        run.mkdir()
        journal = Journal({"ETT_RUN": str(run)})
        journal.stopped()
        journal.met(None, rank=0, size=1, elastic=False)
        journal.ranks_failed(ends)
        journal.stopped()
        journal.met(None, rank=0, size=1, elastic=False)
        facts = [json.loads(line) for line in (run / "attempts-0.jsonl").read_text().splitlines()]
        seen = [(fact["rank"], fact["cause"]) for fact in facts if fact["event"] == "failure"]
        return seen, next(fact["cause"] for fact in facts if fact["event"] == "end")

    assert causes({0: 1, 1: -9}) == ([(0, "exit_1"), (1, "SIGKILL")], "SIGKILL")
    assert causes({0: -15, 1: 1}) == ([(0, "SIGTERM"), (1, "exit_1")], "exit_1")


SAYS_ITS_STANDBY = """
import os, sys
print("SAYS", os.environ["LOCAL_WORLD_SIZE"], "torchett.launch.standby.job" in sys.modules)
"""


@pytest.mark.parametrize("fork", ["0", "1"])
@pytest.mark.parametrize("asked", ["cpu", "auto"])
def test_ranks_that_only_torch_can_count_are_started_in_standbys(
    asked: str, fork: str, tmp_path: Path
) -> None:
    (tmp_path / "x.py").write_text(SAYS_ITS_STANDBY)
    done = run_ours(tmp_path, "--nproc-per-node", asked, "x.py", ETT_STANDBY_FORK=fork)
    size = len(os.sched_getaffinity(0))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"SAYS {size} True"] * size, done.stderr


def test_ranks_that_cannot_be_started_in_standbys_are_said_once(tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text("echo SAYS $RANK")
    done = run_ours(tmp_path, "--nproc-per-node", "2", "--no-python", "bash", "x.sh")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["SAYS 0", "SAYS 1"]
    assert done.stderr.count("ranks start without standbys: the command is 'bash'") == 1


def run_ours(folder: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    ett = [sys.executable, "-m", "torchett.cli.main", "run", "--progress", "0", "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*ett, *torchrun, *words],
        env=os.environ | {"ETT_RUNS": str(folder / "runs")} | env,
        cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


LEAVES = """
import os, subprocess, sys
child = "import time; time.sleep(1.5); open('written', 'w').close()"
subprocess.Popen([sys.executable, "-c", child])
sys.exit(int(os.environ["CODE"]))
"""


@pytest.mark.parametrize(("code", "lives"), [(0, True), (3, False)])
def test_what_a_rank_leaves_running_ends_with_a_failure_only(
    code: int, lives: bool, tmp_path: Path
) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES)
    ett = [sys.executable, "-m", "torchett.cli.main", "run", "--no-standby", "--progress", "0"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "leaves.py"]
    env = os.environ | {"CODE": str(code), "ETT_RUNS": str(tmp_path / "runs")}
    done = subprocess.run([*ett, "--", *torchrun], cwd=tmp_path, env=env, capture_output=True)
    assert (done.returncode == 0) is lives, done.stderr.decode()
    time.sleep(2.5)
    assert (tmp_path / "written").exists() is lives


@pytest.mark.parametrize("option", [["-c", "print('SAYS', __name__)"], ["-X", "dev", "x.py"]])
def test_an_interpreter_with_options_of_its_own_is_no_standbys_work(
    option: list[str], tmp_path: Path
) -> None:
    (tmp_path / "x.py").write_text("print('SAYS', __name__)")
    ett = [sys.executable, "-m", "torchett.cli.main", "run", "--progress", "0", "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    done = subprocess.run(
        [*ett, *torchrun, sys.executable, "-u", *option],
        env=os.environ | {"ETT_RUNS": str(tmp_path / "runs")},
        cwd=tmp_path, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "SAYS __main__\n"), done.stderr
