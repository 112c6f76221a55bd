"""`ett run` looks like the command it runs: status, signals, streams; and it records attempts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from torchett.launch.command import AGENT, command_of

ETT = [sys.executable, "-m", "torchett.cli.main"]


def ett(runs: Path, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "SLURM_"))}
    env |= {"ETT_RUNS": str(runs)} | options.pop("env", {})
    return subprocess.run(
        [*ETT, *args], env=env, capture_output=True, text=True, timeout=60, **options
    )


def facts(runs: Path, job: str = "job") -> list[dict[str, Any]]:
    """The launcher's log, headers left out."""
    lines = (runs / job / "attempts-0.jsonl").read_text().splitlines()
    return [fact for fact in map(json.loads, lines) if "event" in fact]


def ledger(runs: Path, job: str = "job") -> dict[str, Any]:
    done = ett(runs, "report", job, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "command",
    ["exit 0", "exit 3", "kill -SEGV $$", "kill -KILL $$", "kill -TERM $$", "kill -INT $$"],
)
def test_the_exit_status_is_the_commands(command: str, tmp_path: Path) -> None:
    plain = subprocess.run(["bash", "-c", command])
    done = ett(tmp_path, "run", "--job", "job", "--", "bash", "-c", command)
    assert done.returncode == plain.returncode
    end = facts(tmp_path)[-1]
    assert end["event"] == "end"
    assert end["outcome"] == ("success" if plain.returncode == 0 else "failed")
    if plain.returncode < 0:
        assert end["cause"] == signal.Signals(-plain.returncode).name


def test_arguments_streams_and_folder_are_the_commands_own(tmp_path: Path) -> None:
    script = "import os, sys; print(sys.argv[1:], os.getcwd(), sys.stdin.read(), flush=True)"
    command = [sys.executable, "-c", script, "--job", "x", "-h", "a b"]
    plain = subprocess.run(command, input="hello", capture_output=True, text=True, cwd=tmp_path)
    done = ett(tmp_path / "runs", "run", "--", *command, input="hello", cwd=tmp_path)
    assert done.stdout == plain.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_fails_no_job(closed: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; [os.fstat(fd) for fd in range(3)]")
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2"
    command = f"{' '.join(ETT)} run --job job --progress 0 -- {torchrun} train.py {closed}"
    env = os.environ | {"ETT_RUNS": str(tmp_path)}
    assert subprocess.run(["bash", "-c", command], env=env, cwd=tmp_path).returncode == 0
    assert facts(tmp_path)[-1]["outcome"] == "success"


def test_a_failed_command_is_tried_again_as_often_as_asked(tmp_path: Path) -> None:
    done = ett(tmp_path, "run", "--job", "job", "--max-restarts", "2", "--", "bash", "-c", "exit 5")
    assert done.returncode == 5
    assert [(f["event"], f["attempt"]) for f in facts(tmp_path)] == [
        (event, attempt) for attempt in range(3) for event in ("start", "end")
    ]
    assert ledger(tmp_path)["failures"] == {"infra": 3, "scheduler": 0, "user": 0}


def test_success_ends_the_attempts(tmp_path: Path) -> None:
    command = ["bash", "-c", "exit $((ETT_ATTEMPT == 0 ? 1 : 0))"]
    done = ett(tmp_path, "run", "--job", "job", "--max-restarts", "9", "--", *command)
    assert done.returncode == 0
    assert [f["outcome"] for f in facts(tmp_path) if f["event"] == "end"] == ["failed", "success"]


def start_and_wait(runs: Path, script: str, *options: str) -> subprocess.Popen[str]:
    """A running `ett run` whose command has printed its first line."""
    running = subprocess.Popen(
        [*ETT, "run", "--job", "job", *options, "--", sys.executable, "-u", "-c", script],
        env=os.environ | {"ETT_RUNS": str(runs)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    return running


WAITS = """
import signal, sys, time
def told(number, frame):
    print(signal.Signals(number).name)
    if number == signal.SIGTERM:
        sys.exit(7)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, told)
print("ready")
while True:
    time.sleep(0.05)
"""


def test_signals_are_passed_on_and_a_termination_is_a_preemption(tmp_path: Path) -> None:
    running = start_and_wait(tmp_path, WAITS, "--max-restarts", "3")
    assert running.stdout is not None
    running.send_signal(signal.SIGUSR1)
    assert running.stdout.readline() == "SIGUSR1\n"
    running.send_signal(signal.SIGTERM)
    assert running.stdout.read() == "SIGTERM\n"
    assert running.wait(timeout=20) == 7
    assert [f.get("outcome") for f in facts(tmp_path)] == [None, "preempted"]
    assert ledger(tmp_path)["failures"]["scheduler"] == 1


def test_what_a_failed_command_leaves_behind_is_ended(tmp_path: Path) -> None:
    """The child of a killed child would train on, beside the next attempt."""
    orphan = f"{sys.executable} -c 'import time; time.sleep(60)' & echo $! > pid; kill -KILL $$"
    ett(tmp_path, "run", "--", "bash", "-c", orphan, cwd=tmp_path)
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_a_job_of_the_same_name_goes_on_with_its_next_attempt(tmp_path: Path) -> None:
    for _ in range(2):
        ett(tmp_path, "run", "--job", "job", "--", "bash", "-c", "exit 1")
    assert [f["attempt"] for f in facts(tmp_path) if f["event"] == "start"] == [0, 1]
    assert ledger(tmp_path)["attempts"] == 2


def test_a_job_that_ended_well_is_not_gone_on_with_unless_asked(tmp_path: Path) -> None:
    def job(*options: str) -> str:
        done = ett(tmp_path, "run", "--job", "job", *options, "--", "true")
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert f"ett: job job, attempt 0, in {tmp_path / 'job'}\n" in job()
    said = job()
    assert "ett: job ended well, so this is a new run (--resume goes on with job)\n" in said
    assert f"ett: job job-2, attempt 0, in {tmp_path / 'job-2'}\n" in said
    assert "ett: job job, attempt 1, in" in job("--resume")
    assert "ett: job job-3, attempt 0, in" in job()
    assert ledger(tmp_path)["attempts"] == 2
    assert ledger(tmp_path, "job-2")["attempts"] == 1


def test_resume_needs_a_name(tmp_path: Path) -> None:
    done = ett(tmp_path, "run", "--resume", "--", "true")
    expected = "ett: ett run: --resume goes on with a job by its name: add --job NAME\n"
    assert (done.returncode, done.stderr) == (2, expected)


@pytest.mark.parametrize("name", ["a/b", "../evil", "🚀"])
def test_a_job_of_any_name_is_reported_by_it(name: str, tmp_path: Path) -> None:
    assert ett(tmp_path / "runs", "run", "--job", name, "--", "true").returncode == 0
    assert ledger(tmp_path / "runs", name)["attempts"] == 1
    assert len(list((tmp_path / "runs").iterdir())) == len(list(tmp_path.iterdir())) == 1


def test_an_option_that_does_not_exist_is_not_the_command(tmp_path: Path) -> None:
    done = ett(tmp_path, "run", "--max-restart", "2", "--", "touch", str(tmp_path / "ran"))
    assert done.returncode == 2
    assert "--max-restart" in done.stderr
    assert "--max-restarts" in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_job_that_is_running_is_not_run_twice(tmp_path: Path) -> None:
    running = start_and_wait(tmp_path, WAITS)
    second = ett(tmp_path, "run", "--job", "job", "--", "true")
    assert second.returncode == 2
    assert "in use by the launcher" in second.stderr
    running.send_signal(signal.SIGTERM)
    running.wait(timeout=20)


def test_a_running_job_can_be_reported(tmp_path: Path) -> None:
    running = start_and_wait(tmp_path, WAITS)
    before = ledger(tmp_path)
    time.sleep(1.5)
    after = ledger(tmp_path)
    running.send_signal(signal.SIGTERM)
    running.wait(timeout=20)
    assert after["window_s"] > before["window_s"]
    assert after["accounts"]["unattributed"] == pytest.approx(after["rank_seconds"])


@pytest.mark.parametrize("command", [[], ["no-such-command"]])
def test_a_command_that_cannot_be_run_leaves_nothing_behind(
    command: list[str], tmp_path: Path
) -> None:
    done = ett(tmp_path / "runs", "run", "--job", "job", "--", *command)
    assert done.returncode == 2
    assert done.stderr.startswith("ett: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_the_schedulers_times_reach_the_ledger(tmp_path: Path) -> None:
    now = time.time()
    env = {"ETT_SUBMITTED": str(now - 100), "SLURM_JOB_START_TIME": str(now - 40)}
    ett(tmp_path, "run", "--job", "job", "--", "true", env=env)
    found = ledger(tmp_path)
    assert found["queue_s"] == pytest.approx(60, abs=0.01)
    assert found["accounts"]["hardware_setup"] == pytest.approx(40, abs=2)


def test_every_second_of_a_recorded_command_is_explained(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, time\n"
        "import torchett as ett\n"
        "ett.init()\n"
        "with ett.stage('train_module_creation'): time.sleep(0.3)\n"
        "first = 0 if os.environ['ETT_ATTEMPT'] == '0' else 5\n"
        "for i in ett.steps(range(first, 20), start=first):\n"
        "    time.sleep(0.05)\n"
        "    if i == 4: ett.checkpoint_durable(4)\n"
        "    if i == 9 and first == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = ett(tmp_path, "run", "--job", "job", "--max-restarts", "1", "--", str(script))
    assert done.returncode == 0, done.stderr
    found = ledger(tmp_path)
    accounts = found["accounts"]
    assert (found["attempts"], found["last_step"]) == (2, 19)
    assert found["failures"] == {"infra": 1, "scheduler": 0, "user": 0}
    assert accounts["effective"] == pytest.approx(20 * 0.05, rel=0.3)
    assert accounts["unsaved"] == pytest.approx(4 * 0.05, rel=0.3)
    assert accounts["train_module_creation"] == pytest.approx(0.6, rel=0.3)
    assert accounts["detect"] >= 0.05  # the step in which it died
    assert found["groups"]["unattributed"] < 0.05 * found["rank_seconds"]
    assert sum(accounts.values()) == pytest.approx(found["rank_seconds"], abs=1e-6)
    assert len(found["time_to_recover_s"]) == 1


def test_torchrun_is_found_by_a_relative_path_too(monkeypatch: pytest.MonkeyPatch) -> None:
    binaries = Path(sys.executable).parent
    monkeypatch.chdir(binaries.parent)
    given = (f"{binaries.name}/torchrun", "train.py")
    assert command_of(given, as_is=False) == (sys.executable, "-uP", "-m", AGENT, "train.py")
    assert command_of(given, as_is=True) == given


def test_standbys_import_what_they_are_told_to(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys; sys.stdout.write(f\"{'wave' in sys.modules}\\n\")"  # in one piece
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    for words, found in ((["--preload", "wave,no.such"], "True"), ([], "False")):
        done = ett(
            tmp_path / "runs",
            *("run", "--progress", "0", *words, "--", *torchrun),
            *("--nproc-per-node", "2", str(tmp_path / "train.py")),
        )
        assert done.stdout.split() == [found] * 2, done.stderr
        missed = "ett: --preload: standbys do without no.such: no such module\n"
        assert (missed in done.stderr, "wave:" in done.stderr) == (bool(words), False)


@pytest.mark.parametrize(
    ("runs", "job"), [("file", "job"), ("/proc/nope", "job"), (".", "a" * 300)]
)
def test_a_folder_that_cannot_be_written_is_bad_input(runs: str, job: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = ett(tmp_path / runs, "run", "--job", job, "--", "touch", str(tmp_path / "ran"))
    assert done.returncode == 2
    assert done.stderr.startswith("ett: ett run: expected a folder to write to, found /")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "ran").exists()


def test_a_log_that_cannot_be_written_any_more_loses_lines_and_no_restart(tmp_path: Path) -> None:
    log = tmp_path / "job" / "attempts-0.jsonl"
    fills = f"rm -f {log}; mkdir -p {log}; echo x >> {tmp_path}/lives; exit 3"
    done = ett(tmp_path, "run", "--job", "job", "--max-restarts", "2", "--", "bash", "-c", fills)
    assert (done.returncode, done.stderr.count("Traceback")) == (3, 0)
    assert (tmp_path / "lives").read_text() == "x\n" * 3


def test_another_node_counts_its_own_attempts(tmp_path: Path) -> None:
    """Restarts inside an attempt have folders, too, and node 0 may have begun the next already."""
    for name in ("attempt-0", "attempt-0.1", "attempt-0.2", "attempt-1"):
        (tmp_path / "job" / name).mkdir(parents=True)
    for _ in range(2):
        command = ("run", "--job", "job", "--node", "1", "--nodes", "2", "--", "false")
        assert ett(tmp_path, *command).returncode == 1
    lines = (tmp_path / "job" / "attempts-1.jsonl").read_text().splitlines()
    starts = [fact for fact in map(json.loads, lines) if fact.get("event") == "start"]
    assert [fact["attempt"] for fact in starts] == [0, 1]


def test_a_command_that_runs_a_trainer_again_keeps_what_the_first_one_did(tmp_path: Path) -> None:
    """
    python ── step 0 ── evaluation ✗ SIGKILL
                                     python ── step 1 ──
    """
    (tmp_path / "train.py").write_text(
        "import os, signal, sys, time, torchett as ett\n"
        "ett.init()\n"
        "with ett.step(int(sys.argv[1])): time.sleep(0.2)\n"
        "if sys.argv[1] == '0':\n"
        "    with ett.blocked('evaluation'):\n"
        "        time.sleep(0.2)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    twice = f"for i in 0 1; do {sys.executable} {tmp_path}/train.py $i; done"
    done = ett(tmp_path, "run", "--as-is", "--job", "job", "--", "bash", "-c", twice)
    assert done.returncode == 0, done.stderr
    found = ledger(tmp_path)
    assert found.get("notes", []) == []
    assert found["accounts"]["effective"] >= 0.4
    assert 0.18 < found["accounts"]["evaluation"] < 0.6


def test_a_node_that_the_job_does_not_have_is_bad_input(tmp_path: Path) -> None:
    command = ("run", "--job", "job", "--node", "2", "--nodes", "2", "--", "true")
    done = ett(tmp_path, *command)
    expected = "ett: ett run: expected a node from 0 to 1, found node 2\n"
    assert (done.returncode, done.stderr) == (2, expected)
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("fork", ["0", "1"])
def test_what_lies_in_the_folder_is_not_imported_for_torch(fork: str, tmp_path: Path) -> None:
    """As under torchrun, for which the script's folder counts and not the one it is started in."""
    for name in ("torch", "copy", "runpy"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not me')")
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(
        "import copy, sys, torch\n"
        "sys.stdout.write(f\"{'mine' in sys.modules} {sys.path[0]}\\n\")"  # in one piece
    )
    ett, torchrun = (Path(sys.executable).parent / name for name in ("ett", "torchrun"))
    command = [ett, "run", "--progress", "0", "--preload", "mine", "--"]
    command += [torchrun, "--standalone", "--nproc-per-node", "2", "src/train.py"]
    env = os.environ | {"ETT_RUNS": str(tmp_path / "runs"), "ETT_STANDBY_FORK": fork}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    said = [line.split() for line in done.stdout.splitlines()]
    assert [path for _, path in said] == [str(tmp_path / "src")] * 2, done.stderr
    if fork == "1":  # a standby that is needed stops importing
        assert [mine for mine, _ in said] == ["True"] * 2
