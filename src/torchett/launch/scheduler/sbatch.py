"""A batch script for Slurm that preempts well: what `ett slurm submit` writes.

one task a node ─ srun ─ ett run ─ torchrun ─ ranks     a warning (USR1) before the end,
                                                        requeued under the same number
"""

import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchett.model.errors import InputError, RunError

_SUBMIT_S = 30.0
_OWN = ("--nnodes", "--rdzv-", "--rdzv_", "--standalone", "--node-rank", "--master-")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """What was asked for; None and empty: the cluster's own defaults."""

    command: tuple[str, ...]  # a script with its arguments, or torchrun with a script
    name: str
    runs: Path
    ett: tuple[str, ...]  # how `ett` is started on a node,
    torchrun: str = "torchrun"  # and torchrun
    nodes: int = 1
    gpus: int | None = None  # of a node
    ranks: int | None = None  # of a node: as many as GPUs, else 1
    time: str | None = None
    account: str | None = None
    qos: str | None = None
    partition: str | None = None
    grace_s: int = 60
    restarts: int = 3
    setup: tuple[str, ...] = ()  # shell lines before the job
    more: tuple[str, ...] = ()  # options of sbatch, as they are


def batch_script(job: BatchJob) -> str:
    """The script, with one `#SBATCH` line for each option."""
    options = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        *([f"--gres=gpu:{job.gpus}"] if job.gpus else []),
        *([f"--time={job.time}"] if job.time else []),
        *([f"--account={job.account}"] if job.account else []),
        *([f"--qos={job.qos}"] if job.qos else []),
        *([f"--partition={job.partition}"] if job.partition else []),
        "--requeue",
        f"--signal=USR1@{job.grace_s}",
        "--open-mode=append",
        f"--output={_log_path(job)}",
        *job.more,
    ]
    for option in options:
        if not option.startswith("-") or "\n" in option:
            raise InputError(f"--sbatch: expected an option such as --mem=0, found '{option}'")
    run = [*job.ett, "run", f"--max-restarts={job.restarts}", "--", *_torchrun(job)]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in options),
        "",
        f"export ETT_RUNS={shlex.quote(str(job.runs))}",
        f"export ETT_GRACE_S={job.grace_s}",
        *job.setup,
        "",
        "srun " + " ".join(_quoted(word) for word in run),
    ]
    return "\n".join(lines) + "\n"


def submit(script: str, env: Mapping[str, str]) -> str:
    """Hand the script to sbatch; the number of the new job."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"],
            input=script, env=dict(env), capture_output=True, text=True, timeout=_SUBMIT_S,
        )  # fmt: skip
    except FileNotFoundError:
        raise InputError(
            "sbatch: expected Slurm's sbatch on the path, found none: --print shows the script"
        ) from None
    except subprocess.TimeoutExpired:
        raise RunError(f"sbatch: no answer within {_SUBMIT_S:g} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise RunError(f"sbatch: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout.strip().partition(";")[0]


def _torchrun(job: BatchJob) -> list[str]:
    """The command under torchrun, with the rendezvous that the nodes need."""
    if not job.command:
        raise InputError("ett slurm submit: expected a command after --, found none")
    head, *rest = job.command
    if os.path.basename(head) != "torchrun":
        if not head.endswith(".py"):
            return list(job.command)
        rest = [f"--nproc-per-node={job.ranks or job.gpus or 1}", *job.command]
        head = job.torchrun
    given = [word for word in rest if word.startswith(_OWN)]
    if given:
        return [head, *rest]  # the user's own rendezvous
    if job.nodes == 1:
        return [head, "--standalone", *rest]
    meet = [f"--nnodes={job.nodes}", "--rdzv-backend=c10d"]
    meet += ['--rdzv-endpoint="$(hostname):29500"', '--rdzv-id="$SLURM_JOB_ID"']
    return [head, *meet, *rest]


def _quoted(word: str) -> str:
    """For the shell; the rendezvous is read by it."""
    return word if word.startswith("--rdzv-") and '"$' in word else shlex.quote(word)


def _log_path(job: BatchJob) -> str:
    return str(job.runs / f"{job.name}-%j.log")
