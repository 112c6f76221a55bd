"""A training preempted again and again on a real Slurm: by Slurm itself, and by `ett slurm guard`.

    python benchmarks/slurm_guard.py [--guard 10] [--slurm 2] [--ranks 2] [--json]

Needs root and Slurm (see examples/slurm/cluster.py). A low-priority training holds every GPU of a
node; a job of a higher QOS asks for them, runs 3 s, and the training comes back: that is a round.

    waited_s   the other job: submitted → running
    free_s     the training's last save durable → Slurm shows its GPUs free (asked each 0.1 s)
    lost       steps that were finished and had to be done again
    back_s     the other job's end → the training runs again
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples" / "slurm"))
from cluster import Cluster, lacking  # noqa: E402

from torchett.model.errors import RunError  # noqa: E402
from torchett.runs.reader import RunReader  # noqa: E402

TRAINER = """
import sys, time, torch
import torch.distributed as dist
import torchett as ett

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.AdamW(model.parameters())
state = {"model": model, "optimizer": optimizer}
checkpoints = ett.Checkpointer(sys.argv[1], every=100)
first = checkpoints.restore(state)
for step in ett.steps(range(first, 1_000_000), start=first):
    model(torch.randn(8, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    checkpoints.step(step, state)
"""
FIELDS = ("round", "waited_s", "free_s", "lost", "back_s")


class Rounds:
    """The training and the jobs that take its place, on one cluster."""

    def __init__(self, cluster: Cluster, folder: Path, ranks: int) -> None:
        self.cluster, self.folder = cluster, folder
        folder.mkdir()
        (folder / "train.py").write_text(TRAINER)
        path = f"{Path(sys.executable).parent}:{cluster.env['PATH']}"
        self.env = cluster.env | {
            "ETT_RUNS": str(folder / "runs"), "PATH": path, "ETT_BEACON_S": "1",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self.low = self.ett(
            "slurm", "submit", "--gpus", "2", "--ranks", str(ranks), "--account", "team",
            "--qos", "besteffort", "--grace", "15", "--",
            f"{folder}/train.py", f"{folder}/checkpoints",
        ).strip()  # fmt: skip
        self.run = folder / "runs" / f"train-{self.low}"

    def play(self, number: int) -> dict[str, Any]:
        """One preemption, and what it cost."""
        attempts = number - 1
        self._until("it trains", lambda: self._trains_in(attempts), 240)
        asked = time.time()
        high = self.cluster.run(
            "sbatch", "--parsable", "-A", "team", "-q", "prod", "--gres=gpu:2", "-n1",
            "-o", "/dev/null", "--wrap", "srun sleep 3",
        ).strip()  # fmt: skip
        free_at = started_at = 0.0
        while not started_at:
            states = self._states()
            now = time.time()
            if not free_at and states.get(self.low) not in ("RUNNING", "COMPLETING"):
                free_at = now
            if states.get(high, "COMPLETED") != "PENDING":
                started_at = now
            if now - asked > 120:
                raise SystemExit(f"slurm_guard: job {high} did not start in 120 s: {states}")
            time.sleep(0.1)
        free_at = free_at or started_at
        self._until("its end", lambda: self._states().get(high) in (None, "COMPLETED"), 60)
        over_at = time.time()
        self._until("it runs again", lambda: self._states().get(self.low) == "RUNNING", 240)
        back_at = time.time()
        self._until("it trains again", lambda: self._trains_in(attempts + 1), 240)
        return {
            "round": number,
            "waited_s": round(started_at - asked, 1),
            "back_s": round(back_at - over_at, 1),
            **self._told(attempts, free_at),
        }

    def report(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.ett("report", str(self.run), "--json"))
        return told

    # Behind it -------------------------------------------------------------------------------

    def _told(self, attempt: int, free_at: float) -> dict[str, Any]:
        """What the record says: the last save of the attempt, and where the next one resumed."""
        reader = RunReader(self.run).poll()
        rows = reader.history().rows
        saved = [c for c in reader.checkpoints() if c.attempt == attempt]
        steps = rows.take(rows.is_step & (rows.attempt == attempt))
        done = int((steps.index + steps.count - 1).max())
        again = rows.take(rows.is_step & (rows.attempt == attempt + 1))
        durable = max((c.durable_ns for c in saved), default=0) / 1e9
        return {
            "free_s": round(free_at - durable, 2) if durable else None,
            "lost": max(0, done + 1 - int(again.index.min())),
        }

    def _trains_in(self, attempt: int) -> bool:
        try:
            rows = RunReader(self.run).poll().history().rows
        except RunError:
            return False  # not begun
        return int((rows.is_step & (rows.attempt == attempt)).sum()) >= 20

    def _states(self) -> dict[str, str]:
        said = self.cluster.run("squeue", "-h", "-t", "all", "-o", "%i %T")
        return dict(line.split() for line in said.splitlines())

    def _until(self, what: str, done: Any, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not done():
            if time.monotonic() > until:
                said = self.cluster.run("squeue", "-a", "-t", "all", "-o", "%i %q %T %r %v")
                raise SystemExit(f"slurm_guard: {what}: not within {seconds:g} s\n{said}")
            time.sleep(0.2)

    def ett(self, *words: str) -> str:
        command = [sys.executable, "-m", "torchett.cli.main", *words]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"slurm_guard: ett {' '.join(words)}: {done.stderr}")
        return done.stdout


def measure(base: Path, rounds: int, ranks: int, *, guarded: bool) -> dict[str, Any]:
    """Rounds on a fresh cluster, and the training's own report after them."""
    way = "none" if guarded else "slurm"
    with Cluster(base / way, nodes=1, gpus=2, preemption=way) as cluster:
        played = Rounds(cluster, base / f"{way}-jobs", ranks)
        guard = None
        if guarded:
            command = [sys.executable, "-m", "torchett.cli.main", "slurm", "guard", "--for", "prod"]
            command += ["--from", "besteffort", "--grace", "15s", "--json", "--every", "0.5"]
            log = open(base / "guard.jsonl", "w")  # noqa: SIM115
            guard = subprocess.Popen(command, env=cluster.env, stdout=log, stderr=log)
        try:
            rows = []
            for number in range(1, rounds + 1):
                rows.append(played.play(number))
                print(f"slurm_guard: {way}: {rows[-1]}", file=sys.stderr, flush=True)
            report = played.report()
        finally:
            if guard is not None:
                guard.terminate()
                guard.wait(20)
    return {"by": "the guard" if guarded else "Slurm", "rounds": rows, "report": report}


def show(found: dict[str, Any]) -> None:
    print(f"\npreempted by {found['by']}")
    print("".join(f"{name:>10}" for name in FIELDS))
    for row in found["rounds"]:
        print("".join(f"{row[name]!s:>10}" for name in FIELDS))
    report = found["report"]
    told = {key: report[key] for key in ("attempts", "failures", "requeue_s", "last_step")}
    told["unsaved_s"] = round(report["accounts"].get("unsaved", 0.0), 2)
    print(f"its report: {told}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--guard", type=int, default=10, metavar="ROUNDS")
    parser.add_argument("--slurm", type=int, default=2, metavar="ROUNDS", help="some 150 s each")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a folder for settings, logs and runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if (said := lacking()) is not None:
        raise SystemExit(f"slurm_guard: {said}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is taken down
    base = options.keep or Path(tempfile.mkdtemp(prefix="ett-guard-"))
    base.mkdir(parents=True, exist_ok=options.keep is None)  # old rings would join a run there
    found = []
    for rounds, guarded in ((options.guard, True), (options.slurm, False)):
        if rounds:
            found.append(measure(base, rounds, options.ranks, guarded=guarded))
    if options.json:
        print(json.dumps(found))
    else:
        for one in found:
            show(one)
    if not options.keep:
        shutil.rmtree(base, ignore_errors=True)
    bad = [
        row
        for one in found
        if one["by"] == "the guard"
        for row in one["rounds"]
        if row["lost"] or row["free_s"] is None or row["free_s"] > 3 or row["back_s"] > 10
    ]
    if bad:
        raise SystemExit(f"slurm_guard: over the bar (free ≤ 3 s, lost 0, back ≤ 10 s): {bad}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
