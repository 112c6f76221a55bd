"""Slurm's times of this job, from `scontrol show job`: the environment has at most the start."""

import re
import subprocess
import time
from collections.abc import Mapping

_FIELD = re.compile(r"(?:^|\s)(SubmitTime|EligibleTime|StartTime|Restarts)=(\S+)")


def job_times(env: Mapping[str, str], within_s: float) -> tuple[dict[str, object], str | None]:
    """What Slurm says about the job of this environment, and a note if it does not answer."""
    job = env["SLURM_JOB_ID"]
    try:
        answer = subprocess.run(
            ["scontrol", "show", "job", job],
            env=dict(env) | {"SLURM_TIME_FORMAT": "%s"},
            capture_output=True,
            timeout=within_s,
        )
    except subprocess.TimeoutExpired:
        return {}, f"Slurm's times are not known: no answer within {within_s:g} s"
    except OSError as error:
        return {}, f"Slurm's times are not known: scontrol: {error.strerror}"
    if answer.returncode:
        said = answer.stderr.decode(errors="replace").strip().splitlines()
        return {}, f"Slurm's times are not known: {said[0] if said else 'scontrol failed'}"
    return parsed(answer.stdout.decode(errors="replace")), None


def parsed(text: str) -> dict[str, object]:
    """Times and restarts in what `scontrol show job` prints, in seconds since the epoch.

    A job waits in the queue from when it is eligible: before that it waits for what its user
    asked for (a dependency, --begin). Slurm resets the submission when a job is requeued.
    """
    fields = dict(_FIELD.findall(text))
    submit, eligible = _seconds(fields.get("SubmitTime")), _seconds(fields.get("EligibleTime"))
    said: dict[str, object] = {
        "scheduler": "slurm",
        "submit_s": submit,
        "eligible_s": eligible,
        "submitted_s": max((t for t in (submit, eligible) if t is not None), default=None),
        "allocated_s": _seconds(fields.get("StartTime")),
        "restarts": int(fields["Restarts"]) if fields.get("Restarts", "").isdigit() else None,
    }
    return {key: value for key, value in said.items() if value is not None}


def _seconds(text: str | None) -> float | None:
    """Seconds since the epoch, as asked for; or Slurm's standard local time."""
    if not text:
        return None
    if text.isdigit():
        return float(text)
    try:
        return time.mktime(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None  # Unknown, N/A, None
