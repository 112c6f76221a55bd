"""A training preempted on a real Slurm through the guard: saved, gone, back, nothing lost.

Skipped where Slurm is not installed or this is not root: see examples/slurm/cluster.py.
"""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples" / "slurm"), str(ROOT / "benchmarks")]
from cluster import Cluster, lacking  # noqa: E402
from slurm_guard import Rounds  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if (said := lacking()) is not None:
        warnings.warn(f"no test on a real Slurm: {said}", stacklevel=1)
        pytest.skip(said)
    base = tmp_path_factory.mktemp("slurm")
    with Cluster(base / "cluster", nodes=1, gpus=2, preemption="none") as cluster:
        yield cluster


def test_a_training_gives_way_and_comes_back(slurm: Cluster, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torchett.cli.main", "slurm", "guard", "--json"]
    command += ["--for", "prod", "--from", "besteffort", "--grace", "20s", "--every", "0.5"]
    with open(tmp_path / "guard.jsonl", "w") as log:
        guard = subprocess.Popen(command, env=slurm.env, stdout=log, stderr=log)
    try:
        rounds = Rounds(slurm, tmp_path / "jobs", ranks=1)
        found = rounds.play(1)
    finally:
        guard.terminate()
        guard.wait(60)
    lines = (tmp_path / "guard.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert events[:3] == ["claims", "reserved", "signalled"]
    assert {"freed", "started", "eligible"} <= set(events[3:])
    assert "forced" not in events
    assert found["lost"] == 0
    assert found["free_s"] < 10  # on an idle machine 0.3 to 1.1
    assert found["back_s"] < 60  # not Slurm's 121 s

    report = rounds.report()
    assert (report["attempts"], report["failures"]["scheduler"]) == (2, 1)
    assert report["accounts"].get("unsaved", 0) == 0
    assert 0 < report["requeue_s"] < 60
    start = (rounds.run / "attempts-0.jsonl").read_text()
    assert '"cause": "preemption"' in start
    said = [json.loads(line).get("scheduler") for line in start.splitlines()]
    times = [one for one in said if one]
    assert [one["restarts"] for one in times] == [0, 1]
    assert all(one["eligible_s"] <= one["allocated_s"] for one in times)

    comment = _comment(slurm, rounds.low)
    assert comment.startswith("ett:step=")
    assert "preempts=1" in comment
    assert slurm.run("scontrol", "show", "reservation").startswith("No reservations")
    row = next(row for row in _jobs(rounds) if row["job"] == rounds.low)
    assert (row["attempts"], row["preempted"], row["gpus"]) == (2, 1, 2)
    assert row["without_process_gpu_h"] is not None


def _comment(slurm: Cluster, job: str) -> str:
    """The job's comment, once its second attempt has told of itself."""
    until = time.monotonic() + 120
    while True:
        said = slurm.run("squeue", "-h", "-j", job, "-O", "Comment:").strip()
        if "preempts=1" in said or time.monotonic() > until:
            return said
        time.sleep(0.5)


def _jobs(rounds: Rounds) -> list[dict[str, object]]:
    """What `ett slurm jobs` says, once Slurm's database has both attempts."""
    until = time.monotonic() + 120
    while True:
        rows: list[dict[str, object]] = json.loads(rounds.ett("slurm", "jobs", "--json"))["jobs"]
        if any(row["attempts"] == 2 for row in rows) or time.monotonic() > until:
            return rows
        time.sleep(1.0)
