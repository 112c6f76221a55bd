"""The thread of `ett run` that publishes a job's beacon while the job runs.

    records ─► beacon ─┬─► beacon.json in the run folder
                       └─► the job's comment, under Slurm    (only when a checkpoint is new)

ETT_BEACON_S is how often it looks (default 10 s under a scheduler; 0: never). It never takes more
than a hundredth of a core.
"""

import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torchett.model.beacon import Beacon, slurm_comment
from torchett.model.errors import EttError
from torchett.record.beacon import beacon_path, write_beacon

LOOK_S = 10.0
_TOLD_S = 5.0  # for Slurm to take a comment


def look_s(env: Mapping[str, str]) -> float:
    """Seconds between two updates; 0 if the beacon has no reader."""
    given = env.get("ETT_BEACON_S", "")
    try:
        return max(0.0, float(given))
    except ValueError:
        scheduled = "SLURM_JOB_ID" in env or "KUBERNETES_SERVICE_HOST" in env or "ETT_POD" in env
        return LOOK_S if scheduled else 0.0


def watch_beacon(run: Path, env: Mapping[str, str], every_s: float, over: threading.Event) -> None:
    """Publish the run's beacon until the job is over."""
    if over.wait(every_s):
        return
    # numpy and what reads records: imported once the job is under way
    from torchett.launch.scheduler.run_beacon import RunBeacon
    from torchett.runs.reader import RunReader

    source, published, pause_s = RunBeacon(RunReader(run)), None, 0.0
    while not over.wait(pause_s):
        began = time.monotonic()
        try:
            beacon = source.read()
            if beacon is not None and _news(beacon, published):
                write_beacon(beacon_path(run), beacon)
                tell_slurm(beacon, env)
                published = beacon
        except (EttError, OSError):
            pass  # nothing recorded yet, or a disk that is full
        pause_s = max(every_s, 100 * (time.monotonic() - began))


def tell_slurm(beacon: Beacon, env: Mapping[str, str]) -> None:
    """Make the beacon the comment of this job; a comment of the user's own stays."""
    job = env.get("SLURM_JOB_ID")
    if not job:
        return
    try:
        shown = _said(env, "squeue", "-h", "-j", job, "-O", "Comment:").strip()
        if shown in ("", "(null)") or shown.startswith("ett:"):
            _said(env, "scontrol", "update", f"jobid={job}", f"comment={slurm_comment(beacon)}")
    except (OSError, subprocess.TimeoutExpired):
        pass  # the controller does not answer: the next checkpoint is sent


def _news(beacon: Beacon, published: Beacon | None) -> bool:
    """Whether more has changed than the time."""
    if published is None:
        return True
    same = {"durable_s": published.durable_s, "due_s": published.due_s, "save_s": published.save_s}
    starts = beacon.durable_step < 0 and abs(beacon.durable_s - published.durable_s) > 1.0
    return starts or replace(beacon, **same) != published  # type: ignore[arg-type]


def _said(env: Mapping[str, str], *command: str) -> str:
    own = dict(env)
    done = subprocess.run(command, capture_output=True, timeout=_TOLD_S, env=own, text=True)
    return done.stdout
