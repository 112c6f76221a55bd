"""A batch script for Slurm whose jobs are workers: they leave when the spool is done."""

import shlex
from dataclasses import dataclass

from torchett.levers.publish.errors import PublishError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBatch:
    """What was asked for; None and empty: the cluster's own defaults."""

    spool: str
    ett: tuple[str, ...]  # how `ett` is started on a node
    workers: int = 1
    cpus: int = 4  # of a worker
    memory: str | None = None  # of a worker
    time: str | None = None
    account: str | None = None
    qos: str | None = None
    partition: str | None = None
    work: tuple[str, ...] = ()  # more options of `ett publish work`
    setup: tuple[str, ...] = ()  # shell lines before the worker
    more: tuple[str, ...] = ()  # options of sbatch, as they are


def worker_script(batch: WorkerBatch) -> str:
    """The script: an array of as many jobs as workers, each of which starts when it can."""
    options = [
        "--job-name=ett-publish",
        f"--array=1-{batch.workers}",
        "--ntasks=1",
        f"--cpus-per-task={batch.cpus}",
        *([f"--mem={batch.memory}"] if batch.memory else []),
        *([f"--time={batch.time}"] if batch.time else []),
        *([f"--account={batch.account}"] if batch.account else []),
        *([f"--qos={batch.qos}"] if batch.qos else []),
        *([f"--partition={batch.partition}"] if batch.partition else []),
        "--requeue",  # a job that is killed is free again
        "--open-mode=append",
        "--output=ett-publish-%A-%a.log",
        *batch.more,
    ]
    for option in options:
        if not option.startswith("-") or "\n" in option:
            raise PublishError(f"--sbatch: expected an option such as --mem=16G, found '{option}'")
    command = [*batch.ett, "publish", "work", batch.spool, "--drain", *batch.work]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in options),
        "",
        f"export OMP_NUM_THREADS={batch.cpus}",
        *batch.setup,
        "",
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"
