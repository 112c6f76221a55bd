"""Twenty jobs on a real Slurm, and the same twenty in the simulator: with the guard, and without.

    python benchmarks/slurm_reality.py [--by guard|slurm|both] [--jobs 20] [--seed 0] [--json]

Needs root and Slurm (see examples/slurm/cluster.py). One node of 8 GPUs; two jobs in three are of a
low QOS (1 to 4 GPUs, trainers that save when they are signalled), the others may claim their GPUs.
What the simulator is told beside the arrivals is measured on the way: how long each job ran (as in
a trace), start-up, restart, and the time from a signal until GPUs are free; without the guard,
from the last step until then. By Slurm alone the youngest is preempted and held back for 121 s,
which is a constant of Slurm's and told to the simulator as it is. Compared: when jobs started
(their last attempt), how long they took from submission to end, preemptions, and the GPU-seconds
that leaving and restarting took.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples" / "slurm"))
from cluster import Cluster, lacking  # noqa: E402

from torchett.runs.importers.sacct import FIELDS, SlurmJob, parse_sacct  # noqa: E402
from torchett.runs.reader import RunReader  # noqa: E402
from torchett.schedule import (  # noqa: E402
    OURS,
    POLICIES,
    SLURM_HOLD_S,
    Habits,
    Settings,
    Trace,
    workload,
)
from torchett.schedule.simulation.simulator import Simulation  # noqa: E402

TRAINER = """
import pathlib, signal, sys, time, torchett as ett
from torchett.record.api import last_step, note

known, steps, told = pathlib.Path(sys.argv[1]), int(sys.argv[2]), []
signal.signal(signal.SIGUSR1, lambda number, frame: told.append(number))
note("saves_on_notice", {"grace_s": 20})
first = int(known.read_text()) + 1 if known.exists() else 0
for step in ett.steps(range(first, steps), start=first):
    time.sleep(0.1)
    if told:
        known.write_text(str(step))
        ett.checkpoint_durable(step)
        last_step(step)
        sys.exit(7)
"""
GPUS = 8
BARS = ("start_s", "jct_s", "preemptions", "leaving_restarting_gpu_s")


@dataclass(frozen=True, slots=True)
class Asked:
    """One job of the schedule."""

    submit_s: float
    high: bool
    gpus: int
    run_s: float


def schedule(count: int, seed: int) -> list[Asked]:
    rng, at, made = random.Random(seed), 0.0, []
    for number in range(count):
        high = number % 3 == 2
        gpus = rng.choice([2, 4]) if high else rng.choice([1, 2, 4])
        made.append(Asked(round(at, 1), high, gpus, rng.uniform(8, 14) if high else 30.0))
        at += rng.uniform(3, 8)
    return made


def play(jobs: list[Asked], base: Path, *, guarded: bool) -> dict[str, Any]:
    """The schedule on a real Slurm."""
    base.mkdir()
    (base / "train.py").write_text(TRAINER)
    way = "none" if guarded else "slurm"
    with Cluster(base / "cluster", nodes=1, gpus=GPUS, preemption=way) as cluster:
        path = f"{Path(sys.executable).parent}:{cluster.env['PATH']}"
        env = cluster.env | {"ETT_RUNS": str(base / "runs"), "PATH": path, "ETT_BEACON_S": "2"}
        ett = [sys.executable, "-m", "torchett.cli.main"]
        guard = [*ett, "slurm", "guard", "--for", "prod", "--from", "besteffort", "--json"]
        watch = None
        if guarded:
            with open(base / "guard.jsonl", "w") as log:
                watch = subprocess.Popen(
                    [*guard, "--grace", "20s", "--every", "0.5"], env=env, stdout=log, stderr=log
                )
        try:
            numbers = _submit(jobs, base, env)
            until = time.monotonic() + 600
            while cluster.run("squeue", "-h").strip() and time.monotonic() < until:
                time.sleep(1)
            time.sleep(2)  # the database lags behind
            said = cluster.run("sacct", "-X", "-D", "-P", "-S", "now-1hours", "-o", FIELDS)
        finally:
            if watch is not None:
                watch.terminate()
                watch.wait(20)
    known = {job.number: job for job in parse_sacct(said.splitlines(), "sacct")}
    found = _measured(jobs, [known[number] for number in numbers], base / "runs")
    if guarded:  # what it saw is finer than Slurm's whole seconds
        lines = (base / "guard.jsonl").read_text().splitlines()
        freed = [event for event in map(json.loads, lines) if event["event"] == "freed"]
        gpus = {int(number): job.gpus for number, job in zip(numbers, jobs, strict=True)}
        found["leaving_gpu_s"] = sum(event["after_s"] * gpus[event["job"]] for event in freed)
        found["exit_s"] = statistics.mean(e["after_s"] for e in freed) if freed else 1.0
    return found


def _submit(jobs: list[Asked], base: Path, env: dict[str, str]) -> list[str]:
    began, numbers = time.monotonic(), []
    for number, job in enumerate(jobs):
        time.sleep(max(0.0, job.submit_s - (time.monotonic() - began)))
        what = f"srun sleep {job.run_s:.1f}"
        if not job.high:
            trainer = f"{base}/train.py {base}/step-{number} {int(job.run_s * 10)}"
            what = f"srun ett run --progress 0 -- {sys.executable} {trainer}"
        command = [
            "sbatch",
            "--parsable",
            "--requeue",
            "-n1",
            "-A",
            "team",
            f"--gres=gpu:{job.gpus}",
        ]
        command += ["-q", "prod" if job.high else "besteffort", "-o", f"{base}/%j.log"]
        done = subprocess.run(
            [*command, "--wrap", what], env=env, capture_output=True, text=True, check=True
        )
        numbers.append(done.stdout.strip())
    return numbers


def _measured(jobs: list[Asked], known: list[SlurmJob], runs: Path) -> dict[str, Any]:
    zero = min(job.attempts[0].submit_s for job in known)
    starts, restarts, restarting, ran = [], [], 0.0, []
    leaves, leaving = [], 0.0
    for asked, job in zip(jobs, known, strict=True):
        if asked.high:
            ran.append(job.attempts[-1].held_s(0.0))
            continue
        ran.append(0.0)
        rows = RunReader(runs / f"train-{job.number}").poll().history().rows
        for number, attempt in enumerate(job.attempts):
            steps = rows.take(rows.is_step & (rows.attempt == number))
            if not len(steps):
                continue
            took = int(steps.t0_ns.min()) / 1e9 - attempt.start_s
            over_s = int(steps.t1_ns.max()) / 1e9
            ran[-1] += over_s - int(steps.t0_ns.min()) / 1e9
            if attempt is job.attempts[-1]:
                ran[-1] += max(0.0, (attempt.end_s or over_s) - over_s)
            else:
                leaves.append(max(0.0, (attempt.end_s or over_s) - over_s))
                leaving += leaves[-1] * asked.gpus
            (restarts if number else starts).append(took)
            restarting += took * asked.gpus if number else 0.0
    return {
        "submit_s": [job.attempts[0].submit_s - zero for job in known],
        "starts": [job.attempts[-1].start_s - zero for job in known],
        "ends": [(job.attempts[-1].end_s or 0.0) - zero for job in known],
        "ran_s": ran,
        "preemptions": sum(len(job.attempts) - 1 for job in known),
        "leaving_gpu_s": leaving,
        "restarting_gpu_s": restarting,
        "start_up_s": statistics.mean(starts),
        "restart_s": statistics.mean(restarts) if restarts else 0.0,
        "exit_s": statistics.mean(leaves) if leaves else 1.0,
    }


def simulated(jobs: list[Asked], real: dict[str, Any], *, guarded: bool) -> dict[str, Any]:
    """The schedule in the simulator, with the real one's start-up, restart and exit."""
    start_up = [0.0 if job.high else real["start_up_s"] for job in jobs]
    run_s = np.array(real["ran_s"]) + np.array(start_up)
    gpus = np.array([job.gpus for job in jobs], dtype=np.int64)
    trace = Trace(
        name="twenty",
        submit_s=np.array(real["submit_s"]),
        vc=np.array([0 if job.high else 1 for job in jobs], dtype=np.int64),
        gpus=gpus,
        run_s=run_s,
        vcs=("prod", "besteffort"),
        weights={"prod": 1.0, "besteffort": 0.0},
    )
    load = trace.gpu_s / trace.span_s / GPUS  # arrivals as they were
    habits = Habits(
        checkpoint_s=3600.0, save_s=0.01, save_spread=0.0,
        restart_s=real["restart_s"], on_signal=1.0,
    )  # fmt: skip
    work = workload(trace, load=load, gpus=GPUS, habits=habits)
    policy, hold_s = (OURS, 0.0) if guarded else (POLICIES["youngest-first"], SLURM_HOLD_S)
    settings = Settings(grace_s=20.0, exit_s=real["exit_s"], hold_s=hold_s)
    game = Simulation(work, policy, settings)
    game.run()
    return {
        "starts": list(game.start),
        "ends": list(game.ended),
        "preemptions": sum(game.preempts),
        "leaving_gpu_s": game.sums["leaving"],
        "restarting_gpu_s": game.sums["restarting"],
    }


def figures(found: dict[str, Any], submit_s: list[float]) -> dict[str, float]:
    jct = [end - asked for end, asked in zip(found["ends"], submit_s, strict=True)]
    return {
        "start_s": statistics.mean(found["starts"]),
        "jct_s": statistics.mean(jct),
        "preemptions": float(found["preemptions"]),
        "leaving_restarting_gpu_s": found["leaving_gpu_s"] + found["restarting_gpu_s"],
    }


def compare(jobs: list[Asked], base: Path, *, guarded: bool) -> dict[str, Any]:
    """One way of preempting, on Slurm and in the simulator."""
    real = play(jobs, base, guarded=guarded)
    game = simulated(jobs, real, guarded=guarded)
    theirs, ours = figures(real, real["submit_s"]), figures(game, real["submit_s"])
    off = {key: 100 * (ours[key] / theirs[key] - 1) if theirs[key] else 0.0 for key in BARS}
    by = "the guard" if guarded else "Slurm alone"
    return {"by": by, "slurm": real, "simulator": game, "off_percent": off}


def show(found: dict[str, Any]) -> None:
    real, game = found["slurm"], found["simulator"]
    theirs, ours = figures(real, real["submit_s"]), figures(game, real["submit_s"])
    told = {key: round(real[key], 2) for key in ("start_up_s", "restart_s", "exit_s")}
    jobs = len(real["submit_s"])
    print(f"{jobs} jobs, preempted by {found['by']}; measured and told to the simulator: {told}")
    print(f"{'':26}{'Slurm':>10}{'simulator':>11}{'off by':>9}")
    for key in BARS:
        off = found["off_percent"][key]
        print(f"{key:26}{theirs[key]:>10.1f}{ours[key]:>11.1f}{off:>8.1f}%")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--by", choices=("guard", "slurm", "both"), default="both")
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a new folder for settings, logs and runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if (said := lacking()) is not None:
        raise SystemExit(f"slurm_reality: {said}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is taken down
    base = options.keep or Path(tempfile.mkdtemp(prefix="ett-reality-"))
    base.mkdir(parents=True, exist_ok=options.keep is None)
    jobs = schedule(options.jobs, options.seed)
    ways = ("guard", "slurm") if options.by == "both" else (options.by,)
    found = [compare(jobs, base / way, guarded=way == "guard") for way in ways]
    if options.json:
        print(json.dumps(found))
    else:
        for one in found:
            show(one)
    if not options.keep:
        shutil.rmtree(base, ignore_errors=True)
    over = [
        f"{key} ({one['by']})" for one in found for key in BARS if abs(one["off_percent"][key]) > 10
    ]
    if over:
        raise SystemExit(f"slurm_reality: more than 10% off: {', '.join(over)}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
