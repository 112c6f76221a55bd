"""A hang is told from slowness."""

import ctypes
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from torchett.launch.elastic.hang import HangWatch, Life, look
from torchett.record.flight.format import BEAT_AT
from torchett.record.flight.ring import RingFile
from torchett.runs.reader import RunReader

S = 1_000_000_000


def life(beat_s: float, cpu: int, state: str = "S") -> Life:
    return Life(state=state, cpu_ticks=cpu, beat_ns=int(beat_s * S))


def watched(*seen: Life, timeout_s: float = 3, left_s: float | None = None) -> list[int]:
    """At which seconds a process that is seen so, once a second, is found to hang.

    A peer has exited after `left_s`.
    """
    watch = HangWatch(timeout_s)
    return [
        t
        for t, now in enumerate(seen)
        if watch.hung({7: now}, t * S, peer_left=left_s is not None and t >= left_s)
    ]


def test_a_process_that_neither_beats_nor_works_hangs() -> None:
    assert watched(*[life(1, 5)] * 6) == [3, 4, 5]


def test_a_process_that_is_stopped_hangs_whatever_it_did_before() -> None:
    assert watched(life(1, 5), life(2, 6), *[life(2, 6, "T")] * 5) == [5, 6]


@pytest.mark.parametrize(
    ("state", "left_s", "found"),
    [
        ("S", None, 60),  # silent: it may be slow in a way that nobody sees
        ("T", None, 8),  # stopped by a signal
        ("S", 0, 8),  # a peer has exited, and this rank waits for nobody
        ("S", 20, 28),
    ],
)
def test_silence_is_given_time_unless_something_proves_a_hang(
    state: str, left_s: float | None, found: int
) -> None:
    assert watched(*[life(1, 5, state)] * 70, timeout_s=60, left_s=left_s)[0] == found


def test_a_process_that_waits_for_the_interpreter_does_not_work() -> None:
    """Threads that wait for the GIL wake every 5 ms: a tick of CPU time now and then."""
    assert watched(*[life(1, t // 5) for t in range(7)]) == [3, 4, 5, 6]


def test_a_process_that_a_debugger_holds_does_not_hang() -> None:
    held = Life(state="t", cpu_ticks=5, beat_ns=S, traced=True)
    assert watched(*[held] * 20) == []
    assert watched(*[replace(held, state="S")] * 20) == []


@pytest.mark.parametrize(
    "seen",
    [
        [life(t, 5) for t in range(1, 9)],  # waits for data: the interpreter is free
        [life(1, 100 * t) for t in range(1, 9)],  # keeps the interpreter busy: a large pickle
        [life(0, 5) for t in range(1, 9)],  # keeps no record: nobody can tell
        [life(1, 5), life(1, 5), life(2, 5), life(2, 5), life(2, 99), life(2, 99), life(2, 99)],
    ],
)
def test_a_process_that_is_only_slow_is_left_alone(seen: list[Life]) -> None:
    assert watched(*seen) == []


def test_a_traced_process_is_seen_to_be_traced(tmp_path: Path) -> None:
    """A process that is stopped by ptrace, as under gdb."""
    libc = ctypes.CDLL(None)
    child = subprocess.Popen(["sleep", "60"])
    try:
        if libc.ptrace(16, child.pid, None, None) != 0:  # PTRACE_ATTACH
            pytest.skip("no process may be traced here")
        os.waitpid(child.pid, os.WUNTRACED)
        assert look({0: child.pid}, tmp_path, 0, 0)[child.pid].traced
    finally:
        child.kill()
        child.wait()


@pytest.mark.e2e
def test_a_stopped_rank_is_ended_and_the_job_goes_on(tmp_path: Path) -> None:
    """Rank 1 stops itself; rank 0 would wait for it in the collective for half an hour."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, time\n"
        "import torch, torch.distributed as dist\n"
        "import torchett as ett\n"
        "ett.init()\n"
        "dist.init_process_group('gloo')\n"
        "rank, first = dist.get_rank(), os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n"
        "for i in ett.steps(range(5)):\n"
        "    dist.all_reduce(torch.ones(1))\n"
        "    if first and rank == 1 and i == 2: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "dist.destroy_process_group()\n"
    )
    ett = [sys.executable, "-m", "torchett.cli.main"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    options = ["--job", "job", "--hang-timeout", "2"]
    began = time.monotonic()
    done = subprocess.run(
        [*ett, "run", *options, "--", *torchrun, "--nproc-per-node", "2", "--max-restarts", "1",
         str(script)],
        env=os.environ | {"ETT_RUNS": str(tmp_path)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "shows no sign of life: ended" in done.stderr
    assert time.monotonic() - began < 60
    lines = (tmp_path / "job" / "attempts-0.jsonl").read_text().splitlines()
    causes = [fact.get("cause") for fact in map(json.loads, lines) if fact.get("event") == "end"]
    assert causes == ["hang", None]


def test_a_rank_is_judged_by_its_own_ring(tmp_path: Path) -> None:
    """Not by one of another run, attempt, rank or process."""
    rings = []

    def ring(beat: int, run: Path = tmp_path, attempt: int = 0, rank: int = 0) -> None:
        made = RingFile(run, attempt=attempt, restart=0, rank=rank)
        made.memory[BEAT_AT : BEAT_AT + 8] = beat.to_bytes(8, "little")
        rings.append(made)

    me = os.getpid()
    try:
        ring(5)
        ring(9, rank=1)
        ring(7, attempt=1, rank=2)
        ring(8, run=tmp_path / "other", rank=3)
        beats = [look({rank: me}, tmp_path, 0, 0)[me].beat_ns for rank in range(4)]
        assert beats == [5, 9, 0, 0]
        parent = os.getppid()
        assert look({0: parent}, tmp_path, 0, 0)[parent].beat_ns == 0
    finally:
        for made in rings:
            made.remove()
            made.let_go()


HELD = """
import ctypes, os, sys, time
import torch.distributed as dist
import torchett as ett

ett.init()
dist.init_process_group("gloo")
rank, first = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
print(f"rank {rank} begins", flush=True)
for i in ett.steps(range(5)):
    dist.barrier()
if rank == 1 and first:
    ctypes.PyDLL(None).sleep(600)  # holds the interpreter: not even a beat
"""


@pytest.mark.e2e
def test_a_rank_that_hangs_after_the_last_step_is_ended_and_the_job_is_done(tmp_path: Path) -> None:
    """
    rank 0  s s s s s exits 0
    rank 1  s s s s s ▒▒▒▒▒▒▒▒▒▒▒▒▒▒ ✗       holding the interpreter, as gloo's threads may do
    """
    script = tmp_path / "train.py"
    script.write_text(HELD)
    began = time.monotonic()
    done = run_two(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 60
    assert "no sign of life after its last step, and its peers have exited: ended" in done.stderr
    assert done.stdout.count("begins") == 2, "nothing was begun anew"
    ledger = RunReader(tmp_path / "job").poll().ledger()
    assert ledger.last_step == 4
    assert sum(ledger.failures.values()) == 0
    assert ledger.accounts["teardown"] > 6 * S
    assert "detect" not in ledger.accounts


def run_two(script: Path, runs: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a script on two ranks, with one restart."""
    ett = [sys.executable, "-m", "torchett.cli.main", "run", "--job", "job", *options, "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*ett, *torchrun, "--nproc-per-node", "2", "--max-restarts", "1", str(script)],
        env=os.environ | {"ETT_RUNS": str(runs)}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
