"""`ett publish add | work | jobs | retry`: the spool and its workers."""

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import click

from torchett.cli.output import (
    json_option,
    print_json,
    print_result,
    print_rich,
    speaks_plainly,
)
from torchett.cli.publish.versions import registry_option, registry_url
from torchett.model.errors import InputError


@click.command()
@click.argument("spool")
@click.option(
    "--recipe",
    required=True,
    metavar="FILE.py:NAME",
    help="Function that returns the recipe; or MODULE:NAME.",
)
@click.option(
    "--anchor", required=True, metavar="CHECKPOINT", help="Path or URL of the checkpoint."
)
@click.option("--name", required=True, help="Name of the model in the registry.")
@click.option(
    "--alias",
    default="live",
    show_default=True,
    help="Alias to move to the new version; '' for none.",
)
@json_option
@registry_option
@speaks_plainly
def add(
    spool: str,
    recipe: str,
    anchor: str,
    name: str,
    alias: str,
    as_json: bool,
    registry: str | None,
) -> None:
    """Add a publishing job to SPOOL by hand."""
    from torchett.levers.publish.recipe.anchor import find_anchor
    from torchett.levers.publish.registry.aliases import checked_alias
    from torchett.levers.publish.registry.registry import Registry
    from torchett.levers.publish.spool.job import PublishJob
    from torchett.levers.publish.spool.spool import Spool
    from torchett.levers.publish.trainer import target_of

    found = find_anchor(_absolute(anchor))
    Registry(registry_url(registry)).model(name)  # refuse a bad name now
    job = PublishJob(
        name=name,
        recipe=target_of(recipe),
        anchor=found.path,
        anchor_sha256=found.sha256,
        registry=_absolute(registry_url(registry)),
        alias=checked_alias(alias) if alias else None,
        path=(os.getcwd(),),
        dropped_s=time.time(),
    )
    opened = Spool(_absolute(spool))
    added = opened.add(job)
    standing = opened.standing(job.id)
    version = standing.told.get("version") if standing.state == "done" else None
    said = f"{job.id} added" if added else f"{job.id} was there already"
    if not added and version:
        said += f" and is {version}; if the recipe or torch has changed since:"
        said += f" ett publish retry {spool} {job.id}"
    result = {"job": job.id, "added": added, "state": standing.state, "version": version}
    print_result(result, said, as_json)


@click.command()
@click.argument("spool")
@click.option("--drain", is_flag=True, help="Exit when every job is done or parked.")
@click.option(
    "--engine",
    default="here",
    show_default=True,
    type=click.Choice(["here", "ray"]),
    help="here: in this process; ray: as tasks on Ray.",
)
@click.option(
    "--tasks",
    default=2,
    show_default=True,
    type=click.IntRange(1),
    help="Number of tasks with --engine ray.",
)
@click.option(
    "--tries",
    default=3,
    show_default=True,
    type=click.IntRange(1),
    help="Number of tries before a job is parked.",
)
@click.option(
    "--lease",
    default=60.0,
    show_default=True,
    type=click.FloatRange(1),
    help="Seconds without a heartbeat after which a worker on another host counts as dead.",
)
@click.option(
    "--poll",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0.01),
    help="Seconds between two looks for a new job.",
)
@click.option(
    "--scratch",
    type=click.Path(path_type=Path),
    help="Folder for temporary files (default: $TMPDIR).",
)
@click.option("--mlflow", metavar="URI", help="Copy every version to this MLflow server, too.")
@json_option
@speaks_plainly
def work(
    spool: str,
    drain: bool,
    engine: Literal["here", "ray"],
    tasks: int,
    tries: int,
    lease: float,
    poll: float,
    scratch: Path | None,
    mlflow: str | None,
    as_json: bool,
) -> None:
    """Process the jobs of SPOOL on this host's CPU.

    The exit code is 1 if any try failed.
    """
    from torchett.levers.publish.spool.spool import Spool
    from torchett.levers.publish.spool.worker import Habits, work

    if scratch is not None and not scratch.is_dir():
        raise InputError(f"--scratch {scratch}: expected a folder")
    habits = Habits(tries=tries, poll_s=poll, scratch=scratch, mlflow=mlflow)
    if engine == "ray":
        from torchett.levers.publish.spool.ray_engine import work_with_ray

        tally, said = work_with_ray(_absolute(spool), habits, at_once=tasks, lease_s=lease)
        for line in said:
            click.echo(f"ett: {line}", err=True)
    else:
        opened = Spool(_absolute(spool), lease_s=lease)
        try:
            tally = work(
                opened, habits, drain=drain, say=lambda line: click.echo(f"ett: {line}", err=True)
            )
        except KeyboardInterrupt:
            raise SystemExit(130) from None
    if as_json:
        print_json({"spool": _absolute(spool), **asdict(tally)})
    elif drain and not (tally.published or tally.failed or tally.lost):
        click.echo(f"ett: {spool} has no job to process", err=True)
    if tally.failed:
        raise SystemExit(1)


@click.command()
@click.argument("spool")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@speaks_plainly
def jobs(spool: str, as_json: bool) -> None:
    """List the jobs of SPOOL with their state and result."""
    from torchett.levers.publish.spool.spool import Spool

    opened = Spool(_absolute(spool))
    rows: list[dict[str, Any]] = [asdict(opened.standing(job)) for job in opened.jobs()]
    if as_json:
        print_json({"spool": opened.url, "jobs": rows})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("job", "state", "failed", ""):
        table.add_column(heading, overflow="fold")
    for row in rows:
        told = row["told"]
        table.add_row(
            row["id"],
            row["state"],
            str(row["failures"] or ""),
            str(told.get("version") or told.get("reason") or ""),
        )
    print_rich(table)
    if not rows:
        click.echo(f"ett: {opened.url} has no jobs", err=True)


@click.command()
@click.argument("spool")
@click.argument("job")
@json_option
@speaks_plainly
def retry(spool: str, job: str, as_json: bool) -> None:
    """Return a JOB to the queue.

    It may be parked, or done: its recipe may have changed.
    """
    from torchett.levers.publish.spool.spool import Spool

    Spool(_absolute(spool)).retry(job)
    print_result({"job": job, "state": "waiting"}, f"{job} waits again", as_json)


def _absolute(where: str) -> str:
    return where if "://" in where else os.path.abspath(where)
