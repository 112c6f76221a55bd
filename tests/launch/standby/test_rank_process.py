"""A script in a standby, or forked, cannot tell that it is not in an interpreter of its own."""

import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchett.launch.standby.job import job
from torchett.launch.standby.spawned import SpawnedStandbys

SPAWNED = "SpawnedStandbys(1, os.environ)"
FORKED = "ForkedStandbys(os.environ)"
both_kinds = pytest.mark.parametrize("pool", [SPAWNED, FORKED], ids=["spawned", "forked"])
RANK_PROCESS = "torchett.launch.standby.rank_process"
SCRIPTS = {
    "facts": """
        import json, os, sys
        here = dict(argv=sys.argv, name=__name__, file=__file__, cwd=os.getcwd(), doc=__doc__)
        here |= dict(path0=sys.path[0], spec=__spec__ is None, rank=os.environ["RANK"])
        here |= dict(main=vars(sys.modules["__main__"]) is globals(), tty=sys.stdin.isatty())
        here |= dict(other=os.environ["OTHER"], hidden="ETT_ATTEMPT" in os.environ)
        print(json.dumps(here))
    """,
    "elsewhere": """
        import inspect, os
        def f(): pass
        os.chdir("/")
        print(os.path.exists(__file__), inspect.getsource(f))
    """,
    "argparse": """
        import argparse
        parser = argparse.ArgumentParser(); parser.add_argument("--lr", type=float)
        parser.add_argument("rest", nargs="*"); parser.parse_args(["--lr", "oops"])
    """,
    "exit_3": "import sys; print('leaving'); sys.exit(3)",
    "exit_text": "import sys; sys.exit('no such luck')",
    "exit_256": "import sys; sys.exit(256)",
    "raises": "def f():\n    raise ValueError('broken')\nprint('before')\nf()\n",
    "syntax_error": "print('never'\n",
    "interrupted": "raise KeyboardInterrupt",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)",
    "atexit": "import atexit; atexit.register(print, 'last words'); print('first words')",
    "thread": """
        import threading, time
        threading.Thread(target=lambda: (time.sleep(0.2), print('from the thread'))).start()
        print('main is done')
    """,
    "stdin": "import sys; print(sys.stdin.read().upper())",
    "forks": """
        import os
        pid = os.fork()
        if pid == 0:
            print('child', flush=True); os._exit(5)
        print('parent saw', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """,
    "spawns": """
        import multiprocessing as mp
        def work(q):
            q.put(__name__)
        if __name__ == '__main__':
            context = mp.get_context('spawn'); q = context.Queue()
            p = context.Process(target=work, args=(q,)); p.start(); print(q.get()); p.join()
    """,
    "pickles": """
        import pickle
        class Thing:
            pass
        print(type(pickle.loads(pickle.dumps(Thing()))) is Thing)
    """,
    "closes": "import sys; print('bye'); sys.stdout.close()",
    "has_none": "import sys; sys.stdout = None",
    "unflushed": "import sys; sys.stdout.write('no newline'); sys.stderr.write('nor here')",
}


def dedented(text: str) -> str:
    import textwrap

    return textwrap.dedent(text).lstrip("\n")


def environment() -> dict[str, str]:
    return os.environ | {"RANK": "3", "OTHER": "yes"}


def in_standby(
    argv: list[str], folder: Path, stdin: str, pool: str = SPAWNED
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a standby that was told to run argv."""
    out, err = folder / "standby.out", folder / "standby.err"
    code = (
        "import sys, os\n"
        "from torchett.launch.standby.job import job\n"
        "from torchett.launch.standby.spawned import SpawnedStandbys\n"
        "from torchett.launch.standby.forked import ForkedStandbys\n"
        f"pool = {pool}\n"
        "pool.fill()\n"
        f"process = pool.take(job({argv!r}, os.environ, {str(out)!r}, {str(err)!r}))\n"
        "print(process.wait())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(), cwd=folder, input=stdin, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout), out.read_text(), err.read_text()


def in_python(argv: list[str], folder: Path, stdin: str, *first: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-u", *first, *argv],
        env=environment(), cwd=folder, input=stdin, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@both_kinds
@pytest.mark.parametrize("name", SCRIPTS)
def test_it_behaves_as_under_python(name: str, pool: str, tmp_path: Path) -> None:
    script = tmp_path / f"{name}.py"
    script.write_text(dedented(SCRIPTS[name]))
    argv = [script.name, "--flag", "a b", ""]
    assert in_standby(argv, tmp_path, "hello", pool) == in_python(argv, tmp_path, "hello")


@pytest.mark.parametrize("name", SCRIPTS)
def test_so_does_a_rank_that_had_to_begin_anew(name: str, tmp_path: Path) -> None:
    script = tmp_path / f"{name}.py"
    script.write_text(dedented(SCRIPTS[name]))
    argv = [str(script), "--flag", "a b", ""]
    fresh = in_python(argv, tmp_path, "hello", "-m", RANK_PROCESS)
    assert fresh == in_python(argv, tmp_path, "hello")


def test_a_rank_that_had_to_begin_anew_is_not_torn_down(tmp_path: Path) -> None:
    """Torch's threads may abort a process in its teardown."""
    script = tmp_path / "x.py"
    script.write_text("class Last:\n    def __del__(self): print('torn down')\nlast = Last()\n")
    assert in_python([str(script)], tmp_path, "") == (0, "torn down\n", "")
    assert in_python([str(script)], tmp_path, "", "-m", RANK_PROCESS) == (0, "", "")


UNCLOSED = """
    import atexit, csv, ctypes, gc, gzip, sys
    rows = csv.writer(open("rows.csv", "w"))
    rows.writerow(["loss", 2])
    raw = open("raw", "wb")
    raw.write(b"raw")
    zipped = gzip.open("zipped", "wt")
    zipped.write("zipped")
    gc.freeze()
    cycle = [open("cycle", "w")]
    cycle[0].write("cycle")
    cycle.append(cycle)
    del cycle
    atexit.register(raw.write, b" and more")
    ctypes.CDLL(None).printf(b"from C")
    sys.exit(4)
"""


@both_kinds
def test_files_that_the_script_has_not_closed_are_written(pool: str, tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.write_text(dedented(UNCLOSED))
    assert in_standby([script.name], tmp_path, "", pool)[:2] == (4, "from C")
    assert (tmp_path / "rows.csv").read_text() == "loss,2\n"
    assert (tmp_path / "raw").read_text() == "raw and more"
    assert (tmp_path / "cycle").read_text() == "cycle"
    assert gzip.decompress((tmp_path / "zipped").read_bytes()) == b"zipped"


@pytest.mark.parametrize("name", ["facts_of_module", "exit_3", "raises"])
def test_a_module_behaves_as_under_python_dash_m(name: str, tmp_path: Path) -> None:
    text = "import sys\nprint(sys.argv, __name__, __spec__.name, sys.path[0])\n"
    (tmp_path / f"{name}.py").write_text(dedented(SCRIPTS.get(name, text)))
    argv = ["-m", name, "x"]
    code, out, err = in_standby(argv, tmp_path, "")
    plain_code, plain_out, plain_err = in_python(argv, tmp_path, "")
    assert (code, out) == (plain_code, plain_out)
    assert err.splitlines()[-1:] == plain_err.splitlines()[-1:]


def test_a_standby_whose_agent_is_gone_leaves(tmp_path: Path) -> None:
    code = (
        "import os, time\nfrom torchett.launch.standby.spawned import SpawnedStandbys\n"
        "standbys = SpawnedStandbys(2, os.environ)\nstandbys.fill()\n"
        "print(*(s.process.pid for s in standbys._waiting), flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(running(pid) for pid in pids):
        assert time.monotonic() < deadline, "a standby outlived its agent"
        time.sleep(0.05)


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_an_environment_that_torch_might_have_read_gets_no_standby() -> None:
    standbys = SpawnedStandbys(1, os.environ)
    standbys.fill()
    try:
        assert standbys.take(job(["x.py"], os.environ | {"OMP_NUM_THREADS": "7"})) is None
        standbys._weighed_s = 0.0
        standbys.weigh()
        assert standbys.most_bytes > 0
    finally:
        standbys.close()


def test_a_standby_that_died_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("import sys; sys.exit(4)")
    standbys = SpawnedStandbys(2, os.environ)
    standbys.fill()
    try:
        first = standbys._waiting[0].process
        first.kill()
        first.wait()
        taken = standbys.take(job([str(tmp_path / "x.py")], os.environ))
        assert taken is not None
        assert taken.wait(timeout=20) == 4
        assert standbys.take(job([str(tmp_path / "x.py")], os.environ)) is None
    finally:
        standbys.close()


def test_a_script_that_sets_what_torch_has_read_already_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text("import os\nos.environ['TORCH_LOGS'] = 'x'\nos.environ['MINE'] = 'y'\n")
    code, _, err = in_standby([str(script)], tmp_path, "")
    assert code == 0
    assert "the script sets TORCH_LOGS" in err
    assert err.count("torchett:") == 1


def test_settings_put_back_or_read_later_are_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accelerate clears the environment and puts it back; torch asks for Lightning's later."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    script = tmp_path / "x.py"
    script.write_text(
        "import os\nkept = dict(os.environ)\nos.environ.clear()\nos.environ.update(kept)\n"
        "os.environ['PYTORCH_NVML_BASED_CUDA_CHECK'] = '1'\n"
    )
    code, _, err = in_standby([str(script)], tmp_path, "")
    assert code == 0
    assert "torchett:" not in err


SLOW_TO_GO = """
import os, sys, time
real = os._exit
os._exit = lambda code: (time.sleep(60.0), real(code))     # as a large process is, to the kernel
print("last line", flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("code", [0, 3])
def test_a_rank_that_ended_well_is_not_waited_for(tmp_path: Path, code: int, fast: bool) -> None:
    script = tmp_path / "x.py"
    script.write_text(SLOW_TO_GO)
    env = {**os.environ, "ETT_FAST_EXIT": "1" if fast else "0"}
    standbys = SpawnedStandbys(1, env)
    standbys.fill()
    rank = standbys.take(job([str(script), str(code)], env, str(tmp_path / "out")))
    assert rank is not None
    try:
        if fast and code:  # what failed may be in the way of the rank that replaces it
            with pytest.raises(subprocess.TimeoutExpired):
                _wait(rank, 2.0)
        else:
            assert _wait(rank, 20.0) == code
            assert (tmp_path / "out").read_text() == "last line\n"
    finally:
        os.kill(rank.pid, signal.SIGKILL) if fast else None
        standbys.close()


def test_a_child_that_ended_well_is_not_its_rank(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.write_text(
        "import os, sys\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit(0)\n"
        "sys.exit(7 + os.waitpid(child, 0)[1])\n"
    )
    standbys = SpawnedStandbys(1, os.environ)
    standbys.fill()
    try:
        rank = standbys.take(job([str(script)], os.environ))
        assert rank is not None
        assert _wait(rank, 20.0) == 7
    finally:
        standbys.close()


def _wait(rank: "subprocess.Popen[bytes]", timeout_s: float) -> int:
    """As torch's agent does."""
    until = time.monotonic() + timeout_s
    while (code := rank.poll()) is None:
        if time.monotonic() > until:
            raise subprocess.TimeoutExpired("rank", timeout_s)
        time.sleep(0.02)
    return code


def test_what_was_imported_ahead_is_left_out_of_collections(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.write_text("import gc; print(gc.get_freeze_count() > 1000, gc.isenabled())")
    assert in_standby([str(script)], tmp_path, "")[1] == "True True\n"


def test_spare_ones_are_counted_before_they_have_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    room = (1 << 30) * 5 // 2
    monkeypatch.setattr("torchett.launch.standby.spawned.available_bytes", lambda: room)
    standbys = SpawnedStandbys(8, os.environ)
    try:
        for _ in range(2):
            standbys.fill(spare=True)
            assert len(standbys._waiting) == 1, "of 1 GiB each, and as much is left to the ranks"
    finally:
        standbys.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take its niceness back")
def test_a_standby_that_is_taken_is_nice_in_none_of_its_threads(tmp_path: Path) -> None:
    (tmp_path / "threads.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    (tmp_path / "x.py").write_text(
        "import os\nthreads = os.listdir('/proc/self/task')\n"
        "print(len(threads) > 1, {os.getpriority(os.PRIO_PROCESS, int(t)) for t in threads})\n"
    )
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    standbys = SpawnedStandbys(1, env, preload=("threads",))
    standbys.fill(spare=True)
    try:
        pid = standbys._waiting[0].process.pid
        until = time.monotonic() + 20
        while len(os.listdir(f"/proc/{pid}/task")) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        taken = standbys.take(job([str(tmp_path / "x.py")], env, str(tmp_path / "out")))
        assert taken is not None
        assert taken.wait(timeout=20) == 0
        assert (tmp_path / "out").read_text() == "True {0}\n"
    finally:
        standbys.close()
