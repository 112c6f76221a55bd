"""Slurm's own account of a requeued job beside ours: queue, set-up, requeue.

    SLURM_CONF=… python benchmarks/slurm_times.py [--account A] [--qos Q] [--json]

Submits one job to the Slurm of $SLURM_CONF (it must run on this machine), requeues it once, and
compares what `ett report` says of it with what `sacct -D` says, to Slurm's whole seconds.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAINER = """
import time, torchett as ett
for _ in ett.steps(range(30)):
    time.sleep(0.1)
"""


def slurm(*command: str) -> str:
    env = os.environ | {"SLURM_TIME_FORMAT": "%s"}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def wait_for(what: str, job: str, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while slurm("squeue", "-h", "-j", job, "-t", "all", "-o", "%T").strip() != what:
        if time.monotonic() > until:
            raise SystemExit(f"slurm_times: job {job} did not become {what} in {seconds:g} s")
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--account")
    parser.add_argument("--qos")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if shutil.which("sbatch") is None:
        raise SystemExit("slurm_times: expected Slurm's sbatch on the path, found none")
    folder = Path(tempfile.mkdtemp(prefix="ett-slurm-"))
    (folder / "train.py").write_text(TRAINER)
    script = folder / "job.sh"
    command = f"{sys.executable} -m torchett.cli.main run --progress 0 -- {folder}/train.py"
    path = os.environ.get("PYTHONPATH", "")
    script.write_text(
        f"#!/bin/bash\nexport ETT_RUNS={folder}/runs PYTHONPATH={path}\nexec {command}\n"
    )
    asked = ["sbatch", "--parsable", "--requeue", "--begin=now+3", "-o", f"{folder}/%j.out"]
    asked += ["-A", options.account] if options.account else []
    asked += ["-q", options.qos] if options.qos else []
    job = slurm(*asked, str(script)).strip().split(";")[0]
    wait_for("RUNNING", job)
    time.sleep(2)
    slurm("scontrol", "requeue", job)
    wait_for("COMPLETED", job, 240)
    time.sleep(2)  # sacct lags behind
    shown = "JobID,State,Submit,Eligible,Start,End"
    rows = [
        line.split("|")
        for line in slurm("sacct", "-X", "-D", "-P", "-n", "-j", job, f"--format={shown}").split()
    ]
    first, last = rows[0], rows[-1]
    run = f"{folder}/runs/train-{job}"
    report = subprocess.run(
        [sys.executable, "-m", "torchett.cli.main", "report", run, "--json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    ours = json.loads(report.stdout)
    found = {
        "attempts": {"slurm": len(rows), "ett": ours["attempts"]},
        "queue_s": {"slurm": int(first[4]) - int(first[3]), "ett": ours["queue_s"]},
        "requeue_s": {"slurm": int(last[4]) - int(first[5]), "ett": ours["requeue_s"]},
        "held_s": {
            "slurm": sum(int(row[5]) - int(row[4]) for row in rows),
            "ett": ours["rank_seconds"],
        },
    }
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{'':12}{'sacct':>10}{'ett':>10}")
        for name, both in found.items():
            print(f"{name:12}{both['slurm']:>10}{both['ett']:>10.2f}")
    shutil.rmtree(folder)
    off = [
        n for n, b in found.items() if abs(b["slurm"] - b["ett"]) > (0 if n == "attempts" else 3)
    ]
    if off:
        raise SystemExit(f"slurm_times: {', '.join(off)} differ by more than Slurm's rounding")


if __name__ == "__main__":
    main()
