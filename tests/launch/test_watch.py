"""A hang is told from slowness."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchett.launch.watch import _HEAD, Life, Watch, look
from torchett.record.layout import BLOCK_MAGIC

S = 1_000_000_000


def life(beat_s: float, cpu: int, state: str = "S") -> Life:
    return Life(state=state, cpu_ticks=cpu, beat_ns=int(beat_s * S))


def watched(*seen: Life) -> list[int]:
    """At which seconds a process that is seen so, once a second, is found to hang."""
    watch = Watch(timeout_s=3)
    return [t for t, now in enumerate(seen) if watch.hung({7: now}, t * S)]


def test_a_process_that_neither_beats_nor_works_hangs() -> None:
    assert watched(*[life(1, 5)] * 6) == [3, 4, 5]


def test_a_process_that_is_stopped_hangs_whatever_it_did_before() -> None:
    assert watched(life(1, 5), life(2, 6), *[life(2, 6, "T")] * 5) == [5, 6]


@pytest.mark.parametrize(
    "seen",
    [
        [life(t, 5) for t in range(1, 9)],  # waits for data: the interpreter is free
        [life(1, t) for t in range(1, 9)],  # keeps the interpreter busy: a large pickle
        [life(0, 5) for t in range(1, 9)],  # keeps no record: nobody can tell
        [life(1, 5), life(1, 5), life(2, 5), life(2, 5), life(2, 6), life(2, 6), life(2, 6)],
    ],
)
def test_a_process_that_is_only_slow_is_left_alone(seen: list[Life]) -> None:
    assert watched(*seen) == []


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


def test_a_rank_is_judged_by_its_own_record_not_by_one_of_the_same_pid(tmp_path: Path) -> None:
    """Nodes whose processes are numbered apart share the folder."""

    def record(rank: str, pid: int, beat: int) -> None:
        path = tmp_path / f"rank-{rank}.live"
        path.write_bytes(_HEAD.pack(BLOCK_MAGIC, pid, beat, True).ljust(4096, b"\0"))

    me = os.getpid()
    record("0", me, 5)
    record("1", me, 9)
    record("2~1", me, 7)
    record("3", me + 1, 8)
    beats = [look({rank: me}, tmp_path)[me].beat_ns for rank in range(5)]
    assert beats == [5, 9, 7, 0, 0]
