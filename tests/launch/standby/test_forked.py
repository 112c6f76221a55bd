"""Ranks that are forked from a template: as many as wanted, each as new, and none left behind."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from torchett.launch.standby import pool
from torchett.launch.standby.pool import can_fork

AGENT = """
import os, signal, sys, time
from torchett.launch.standby.forked import ForkedStandbys
from torchett.launch.standby.job import common, job
forks = ForkedStandbys(os.environ, preload=PRELOAD)
forks.import_and_fork()
def take(code):
    open("script.py", "w").write(code)
    return forks.take(job(["script.py"], os.environ))
"""


def agent(code: str, folder: Path, preload: tuple[str, ...] = ()) -> list[str]:
    """What a process says that forks its ranks; it does so before it has any threads."""
    script = AGENT.replace("PRELOAD", repr(preload)) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-u", "-c", script],
        cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def test_every_rank_draws_its_own_random_numbers_and_has_a_session(tmp_path: Path) -> None:
    code = """
    script = "import os, random, numpy; print(random.random(), numpy.random.rand(), os.getsid(0))"
    pids = []
    for _ in range(3):
        rank = take(script)
        pids.append(rank.pid)
        assert rank.wait(30) == 0
    print(*pids)
    """
    *said, pids = agent(code, tmp_path, ("numpy",))
    assert len({line.split()[0] for line in said}) == 3
    assert len({line.split()[1] for line in said}) == 3
    assert [line.split()[2] for line in said] == pids.split()


def test_signals_and_statuses_are_the_ranks_own(tmp_path: Path) -> None:
    code = """
    import subprocess
    rank = take("import time; time.sleep(60)")
    try:
        rank.wait(0.1)
    except subprocess.TimeoutExpired:
        print("runs", rank.poll())
    rank.terminate()
    print(rank.wait(10), rank.poll())
    print(take("import sys; sys.exit(7)").wait(10))
    """
    assert agent(code, tmp_path) == ["runs None", "-15 -15", "7"]


def test_a_template_that_was_killed_is_missed_once_and_replaced(tmp_path: Path) -> None:
    code = """
    forks._template.kill()
    forks._template.wait(10)
    print(take("print('a')"))
    forks.fill()
    print(take("print('b')").wait(30))
    """
    assert agent(code, tmp_path) == ["None", "b", "0"]


def test_a_template_with_a_second_thread_is_not_forked(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\n"
        "def begin(): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    code = """
    forks._preload = ("threaded:begin",)
    forks._template.kill(); forks._template.wait(10)
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    forks._env = common(os.environ)
    forks.fill()
    print(take("print('never')"))
    """
    assert agent(code, tmp_path) == ["None"]


def test_ranks_draw_random_numbers_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
    draws = "import random, numpy, torch\\n"
    draws += "print(random.random(), numpy.random.rand(), torch.rand(1))"
    for _ in range(2):
        take(draws).wait(30)
    """
    first, second = (line.split() for line in agent(code, tmp_path, ("numpy", "torch")))
    assert not {*first} & {*second}


def test_a_template_whose_agent_is_gone_leaves(tmp_path: Path) -> None:
    code = """
    rank = take("import time; time.sleep(60)")
    print(forks._template.pid, rank.pid, flush=True)
    os.kill(rank.pid, 9)
    os.kill(os.getpid(), 9)
    """
    pids = [int(word) for word in agent(code, tmp_path)[0].split()]
    deadline = time.monotonic() + 10
    while any(_running(pid) for pid in pids):
        assert time.monotonic() < deadline, "someone outlived the agent"
        time.sleep(0.05)


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("env", "fits"),
    [
        ({"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}, True),
        ({"OMP_NUM_THREADS": "8", "CUDA_VISIBLE_DEVICES": ""}, False),
        ({"CUDA_VISIBLE_DEVICES": ""}, False),
        ({"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ETT_STANDBY_FORK": "0"}, False),
        ({"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ETT_STANDBY_MODEL": "1"}, False),
    ],
)
def test_only_where_a_fork_is_sound(env: dict[str, str], fits: bool) -> None:
    assert can_fork(env) is fits


def test_not_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pool, "_GPUS", (str(tmp_path),))
    assert not can_fork({"OMP_NUM_THREADS": "1"})


def test_a_torch_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    """Swallowed, it would fail again with another error: torch cannot be imported twice."""
    (tmp_path / "torch.py").write_text("raise OSError('libmissing.so: cannot open')")
    code = "from torchett.launch.standby.rank_process import prepare\n"
    code += "prepare('no.such')\nprepare('torch')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "OSError: libmissing.so: cannot open"


def test_a_rehearsal_leaves_no_thread_of_a_progress_bar(tmp_path: Path) -> None:
    """torch.fx shows bars where tqdm is installed, and tqdm watches them by a thread."""
    code = """
    import os, threading, time
    from torchett.launch.standby.rehearsal import end_monitors

    class Bar:
        monitor = None

    class TMonitor(threading.Thread):
        def __init__(self):
            super().__init__(daemon=True)
            self.tqdm_cls, self.over = Bar, threading.Event()
            self.start()
        def run(self):
            self.over.wait()
        def exit(self):
            self.over.set()
            self.join()

    Bar.monitor = TMonitor()
    print(len(os.listdir("/proc/self/task")))
    end_monitors()
    until = time.monotonic() + 10  # a thread that was joined may be about to leave
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < until:
        time.sleep(0.001)
    print(len(os.listdir("/proc/self/task")), Bar.monitor)
    """
    assert agent(code, tmp_path) == ["2", "1 None"]
