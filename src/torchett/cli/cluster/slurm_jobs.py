"""`ett slurm jobs`: what Slurm accounted for, shown or imported."""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.output import print_json, print_rich, speaks_plainly
from torchett.model.errors import InputError, RunError

if TYPE_CHECKING:
    from rich.table import Table

    from torchett.runs.importers.sacct import SlurmJob

_SACCT_S = 300.0


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--since",
    default="now-30days",
    show_default=True,
    help="Show jobs since then, in sacct's format.",
)
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    help="Write a run folder for each job into this folder.",
)
@click.option(
    "--fleet", type=click.Path(path_type=Path), help="Add the jobs to this fleet as rows."
)
@click.option(
    "--project",
    default="default",
    show_default=True,
    help="With --fleet: the project of these jobs.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@speaks_plainly
def jobs(
    file: Path | None,
    since: str,
    into: Path | None,
    fleet: Path | None,
    project: str,
    as_json: bool,
) -> None:
    """Show or import the jobs that Slurm accounted for.

    FILE is what `sacct -a -D -P -o …` printed (the fields: see docs/slurm.md); without it sacct
    is asked.
    """
    from torchett.runs.importers.sacct import parse_sacct

    if file is None:
        lines, name = _sacct(since), "sacct"
    else:
        try:
            lines, name = file.read_text(errors="replace").splitlines(), str(file)
        except OSError as error:
            raise InputError(f"{file}: expected a readable file: {error.strerror}") from None
    found, now_s = parse_sacct(lines, name), time.time()
    if into is not None:
        _import(found, into, now_s)
    if fleet is not None:
        from torchett.cli.fleet.change import take_sacct
        from torchett.cli.fleet.opened import open_fleet

        with open_fleet(fleet, make=True) as opened:
            taken = take_sacct(opened, lines, name, project)
        click.echo(f"ett: {taken} jobs taken into {fleet}", err=True)
    rows = [_row(job, now_s) for job in found]
    if as_json:
        print_json({"jobs": rows})
    else:
        print_rich(_table(rows))


def _sacct(since: str) -> list[str]:
    from torchett.runs.importers.sacct import FIELDS

    if shutil.which("sacct") is None:
        raise InputError(
            "ett slurm jobs: expected Slurm's sacct on the path, found none: give FILE"
        )
    # Without -X: the steps tell when GPUs were held without a process.
    command = ["sacct", "-a", "-D", "-P", "-S", since, "-o", FIELDS]
    env = os.environ | {"SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_SACCT_S)
    except subprocess.TimeoutExpired:
        raise RunError(f"sacct: no answer within {_SACCT_S:g} s: take a later --since") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        said = lines[-1].removeprefix("sacct: ") if lines else f"exit code {done.returncode}"
        raise RunError(f"sacct: {said}")
    return done.stdout.splitlines()


def _import(found: "list[SlurmJob]", into: Path, now_s: float) -> None:
    from torchett.record.identity import safe_name
    from torchett.runs.imported import write_run
    from torchett.runs.importers.sacct import history_of

    made = kept = 0
    for job in found:
        if not job.attempts:
            continue
        history = history_of(job, now_s)
        target = into / safe_name(history.job.name)
        if target.exists():
            kept += 1  # the job's own record, or an earlier import
            continue
        write_run(history, target)
        made += 1
    said = f", {kept} were there already" if kept else ""
    click.echo(f"ett: {made} jobs written to {into}{said}", err=True)


def _row(job: "SlurmJob", now_s: float) -> dict[str, Any]:
    held_s = [attempt.held_s(now_s) * attempt.gpus for attempt in job.attempts]
    idle_s = [attempt.without_process_s(now_s) for attempt in job.attempts]
    known = [
        idle * attempt.gpus
        for idle, attempt in zip(idle_s, job.attempts, strict=True)
        if idle is not None
    ]
    return {
        "job": job.number,
        "name": job.name,
        "account": job.account,
        "qos": job.qos,
        "gpus": job.gpus,
        "attempts": len(job.attempts),
        "preempted": sum(one.state in ("PREEMPTED", "REQUEUED") for one in job.attempts),
        "state": job.attempts[-1].state if job.attempts else "PENDING",
        "queue_s": sum(
            max(0.0, one.start_s - max(one.submit_s, one.eligible_s or 0.0)) for one in job.attempts
        ),
        "held_gpu_h": sum(held_s) / 3600,
        "without_process_gpu_h": sum(known) / 3600 if known else None,
    }


def _table(rows: list[dict[str, Any]]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    left = ("job", "name", "account", "qos", "state")
    heads = ("GPUs", "attempts", "preempted", "queue s", "GPU-h held", "without\na process")
    for heading in left:
        table.add_column(heading)
    for heading in heads:
        table.add_column(heading, justify="right")
    for row in rows:
        idle = row["without_process_gpu_h"]
        table.add_row(
            *(str(row[key]) for key in left),
            *(str(row[key]) for key in ("gpus", "attempts", "preempted")),
            f"{row['queue_s']:,.0f}",
            f"{row['held_gpu_h']:,.2f}",
            "?" if idle is None else f"{idle:,.2f}",
        )
    return table
