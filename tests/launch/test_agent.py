"""The agent's own seams in torch's."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchett.launch.agent import _meet_at_once, _Refill

rendezvous = pytest.importorskip("torch.distributed.elastic.rendezvous.dynamic_rendezvous")


@pytest.mark.parametrize(("nodes", "pauses"), [(1, [1.0]), (2, [(0, 0.3), 1.0])])
def test_only_a_node_that_has_company_waits_for_a_random_while(
    nodes: int, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[float] = []
    monkeypatch.setattr(rendezvous, "_delay", made.append)
    monkeypatch.setattr("time.sleep", made.append)
    _meet_at_once(SimpleNamespace(_settings=SimpleNamespace(max_nodes=nodes)))
    rendezvous._delay((0, 0.3))
    rendezvous._delay(1.0)
    assert made == pauses


def test_a_rendezvous_of_another_kind_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_delay", print)
    _meet_at_once(SimpleNamespace())
    assert rendezvous._delay is print


# torch looks whether a rank lives, says so, and then asks it to end: here it is gone by then.
LEAVES_BEFORE_IT_IS_ASKED = """
import os, sys, time
from torch.distributed.elastic.multiprocessing import api
from torchett.launch import agent

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
    monkeypatch.setattr("torchett.launch.agent.time", ours)
    counted = Counted()
    refill = _Refill(counted, counted)  # type: ignore[arg-type]
    refill.started(2)
    assert counted.filled == at_once
    for counted.trains in (False, True, True):
        clock[0] += 2.0
        refill.look({})
        assert counted.filled == (at_once or counted.trains)


@pytest.mark.parametrize(
    ("size", "model", "kind"),
    [(1, "0", "Forks"), (2, "0", "Forks"), (1, "1", "Forks"), (2, "1", "Supply")],
)
def test_a_model_is_compiled_by_a_process_for_each_rank(
    size: int, model: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template has it for one rank: which one may be compiled in."""
    from torchett.launch import agent

    monkeypatch.setattr(agent.Forks, "begin", lambda self: None)
    monkeypatch.setattr(agent.Standbys, "fill", lambda self: None)
    env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ETT_STANDBY_MODEL": model}
    for key in ("ETT_STANDBY_DEVICE", "ETT_STANDBY_FORK"):
        monkeypatch.delenv(key, raising=False)
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    assert type(agent._standbys(size, env)).__name__ == kind


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
