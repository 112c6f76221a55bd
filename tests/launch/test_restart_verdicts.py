"""Real processes that fail, and what `ett run --max-restarts` does about each."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
ETT = [sys.executable, "-m", "torchett.cli.main"]
_OURS = ("ETT_", "SLURM_", "PET_", "TORCHELASTIC_", "JOB_", "KUBERNETES_")
CGROUPS = Path("/sys/fs/cgroup/memory")

SCRIPT = """
import os, resource, signal, sys
kind, attempt = sys.argv[1], int(os.environ["ETT_ATTEMPT"])
if kind == "sigkill":
    os.kill(os.getpid(), signal.SIGKILL)
if kind == "sigsegv":
    os.kill(os.getpid(), signal.SIGSEGV)
if kind == "rlimit":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytearray(2 << 30)
if kind == "memory":
    held = [bytearray(os.urandom(1 << 20) * 8) for _ in range(64)]
if kind == "timeout":
    print("[rank0]:[E1119 10:03:44.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective"
          " operation timeout: WorkNCCL(SeqNum=43, OpType=ALLREDUCE, Timeout(ms)=600000) ran for"
          " 600029 milliseconds before timing out.", file=sys.stderr, flush=True)
    os.abort()
if kind == "value":
    raise ValueError(f"bad loss in attempt {attempt}")
if kind == "values":
    if attempt == 0: raise ValueError("bad loss")
    if attempt == 1: raise ValueError("bad loss")
    raise ValueError("bad loss")
if kind == "import":
    import no_such_module
if kind == "full":
    with open("/dev/full", "w") as file:
        file.write("x" * 100_000)
"""


def ett(folder: Path, *words: str, limit: int = 5, **options: Any) -> tuple[int, str, list[Any]]:
    """How `ett run` of a command exited, what it said, and its decisions. stderr is a file."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
    env = kept | {"ETT_RUNS": str(folder / "runs")} | options.pop("env", {})
    run = [*ETT, "run", "--job", "a", "--progress", "0", "--max-restarts", str(limit)]
    with (folder / "job.log").open("a") as log:
        done = subprocess.run(
            [*run, *words], env=env, cwd=folder, stderr=log, timeout=60, **options
        )
    report = subprocess.run(
        [*ETT, "report", "a", "--json"], env=env, cwd=folder, capture_output=True, timeout=60
    )
    said = (folder / "job.log").read_text()
    return done.returncode, said, json.loads(report.stdout).get("restarts", [])


def fails(folder: Path, kind: str, **options: Any) -> list[tuple[str, str]]:
    """The category of each failure of this kind, and the verdict on it."""
    (folder / "train.py").write_text(SCRIPT)
    policy = folder / "fast.toml"  # the shipped rows, without their pauses
    policy.write_text('[[restart]]\nname = "fast"\ncause = ["unknown", "nccl_timeout"]\n')
    own = ["--restart-policy", str(policy)] if options.pop("fast", False) else []
    code, _, decisions = ett(folder, *own, "--", sys.executable, "train.py", kind, **options)
    assert code != 0
    return [(one["category"], one["outlook"]) for one in decisions]


TWICE = [("user_code_exception", "restart-now"), ("user_code_exception", "stop")]
MEMORY = [*[("host_oom_kill", "restart-now")] * 2, ("host_oom_kill", "stop")]


@pytest.mark.parametrize(
    ("kind", "verdicts"),
    [
        ("import", [("import_error", "stop")]),
        ("full", [("storage_full", "stop")]),
        ("value", TWICE),
        ("sigsegv", [TWICE[0], *TWICE]),
        ("rlimit", MEMORY),
        ("timeout", [*[("nccl_timeout", "restart-now")] * 2, ("nccl_timeout", "stop")]),
        ("sigkill", [*[("unknown", "restart-now")] * 2, ("unknown", "stop")]),
    ],
)
def test_each_failure_gets_its_verdict(
    kind: str, verdicts: list[tuple[str, str]], tmp_path: Path
) -> None:
    limit = 2 if kind in ("timeout", "sigkill") else 5
    assert fails(tmp_path, kind, limit=limit) == verdicts


def test_an_error_that_moves_is_tried_as_often_as_asked(tmp_path: Path) -> None:
    found = fails(tmp_path, "values", limit=2)
    assert [verdict for _, verdict in found] == ["restart-now", "restart-now", "stop"]


@pytest.fixture
def small_cgroup() -> Any:
    """A cgroup of 256 MiB, made and removed here."""
    group = CGROUPS / f"fl-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(256 << 20))
    except OSError:
        pytest.skip("needs a writable memory cgroup (v1)")
    yield group
    group.rmdir()


def test_a_kill_by_the_kernel_for_memory_is_told_from_any_other(
    small_cgroup: Path, tmp_path: Path
) -> None:
    def enter() -> None:
        (small_cgroup / "cgroup.procs").write_text(str(os.getpid()))

    assert fails(tmp_path, "memory", preexec_fn=enter) == MEMORY


def test_the_report_says_why(tmp_path: Path) -> None:
    fails(tmp_path, "value")
    env = os.environ | {"ETT_RUNS": str(tmp_path / "runs"), "COLUMNS": "200"}
    shown = subprocess.run([*ETT, "report", "a"], env=env, capture_output=True, text=True).stdout
    shown = " ".join(shown.split())
    assert "restart 1 of 5" in shown
    assert "the same error at the same place, 2 times without durable progress" in shown
    said = (tmp_path / "job.log").read_text()
    assert "ett: stop: user_code_exception on rank 0 (ValueError: bad loss in attempt 1)" in said


def test_a_requeued_job_remembers_and_a_new_launch_does_not(tmp_path: Path) -> None:
    slurm = {"SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "a", "ETT_REQUEUE": "0"}
    assert fails(tmp_path, "value", env=slurm) == TWICE
    requeued = slurm | {"SLURM_RESTART_COUNT": "1"}
    assert fails(tmp_path, "value", env=requeued) == [*TWICE, TWICE[1]]
    assert fails(tmp_path, "value") == [*TWICE, TWICE[1], *TWICE]


SAVES = """
import os, signal
import torchett as ett
ett.init()
first = int(open("at").read()) if os.path.exists("at") else 0
for step in range(first, first + 3):
    with ett.step(step): pass
if first >= 9:
    raise SystemExit(0)
open("at", "w").write(str(first + 3))
ett.checkpoint_durable(first + 2)
raise MemoryError
"""


def test_a_job_that_saves_on_its_way_goes_on_beyond_its_budget(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES)
    code, _, decisions = ett(tmp_path, "--", sys.executable, "train.py", limit=1)
    assert code == 0
    assert [one["outlook"] for one in decisions] == ["restart-now"] * 3
    assert [one["durable_step"] for one in decisions] == [2, 5, 8]


RANKS = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    raise ValueError("bad loss")
time.sleep(0.3)
dist.all_reduce(torch.ones(1))
"""


def test_the_first_error_counts_not_what_follows_from_it_on_other_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    code, said, decisions = ett(tmp_path, "--", *torchrun, "train.py")
    assert code == 1
    verdicts = [(one["category"], one["rank"], one["outlook"]) for one in decisions]
    assert verdicts == [
        ("user_code_exception", 1, "restart-now"),
        ("user_code_exception", 1, "stop"),
    ], said


@pytest.mark.parametrize("off", [["--restart-policy", "none"], ["--without", "restart-policy"]])
def test_without_the_policy_a_job_is_started_as_often_as_asked(
    off: list[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [*off, "--", sys.executable, "train.py", "import"]
    code, said, decisions = ett(tmp_path, *words, limit=1)
    assert (code, decisions) == (1, [])
    assert said.count("ett: job a, attempt") == 2


def test_a_bad_policy_is_said_before_the_job_begins(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("[[restart]]\ncause = ['gpus']\n")
    run = [*ETT, "run", "--restart-policy", "own.toml", "--", "touch", "began"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "own.toml: restart 1 (own-1): unknown cause 'gpus'" in done.stderr
    assert not (tmp_path / "began").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_pause_ends_with_the_job_when_it_is_told_to(number: int, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[[restart]]\ncause = "*"\npauses_s = [60]\n')
    run = [*ETT, "run", "--job", "a", "--max-restarts", "3", "--restart-policy", "own.toml"]
    env = os.environ | {"ETT_RUNS": str(tmp_path / "runs")}
    running = subprocess.Popen(
        [*run, "--", "bash", "-c", "exit 3"], env=env, cwd=tmp_path, stderr=subprocess.PIPE
    )
    assert running.stderr is not None
    while b"back-off in 60 s" not in running.stderr.readline():
        pass
    running.send_signal(number)
    assert running.wait(timeout=20) == 3
    running.stderr.close()
