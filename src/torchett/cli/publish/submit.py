"""`ett publish submit`: workers as jobs of Slurm."""

import os
import sys
from pathlib import Path

import click

from torchett.cli.output import print_json, speaks_plainly


@click.command()
@click.argument("spool")
@click.option(
    "--workers", default=1, show_default=True, type=click.IntRange(1), help="Number of workers."
)
@click.option(
    "--cpus", default=4, show_default=True, type=click.IntRange(1), help="Cores of each worker."
)
@click.option("--memory", metavar="SIZE", help="Memory of each worker, in sbatch's format.")
@click.option("--time", "limit", metavar="TIME", help="Time limit, as sbatch takes it.")
@click.option("--account", help="Slurm account.")
@click.option("--qos", help="Slurm QOS.")
@click.option("--partition", help="Slurm partition.")
@click.option("--mlflow", metavar="URI", help="Bring every version to this MLflow server, too.")
@click.option("--setup", multiple=True, metavar="LINE", help="A shell line before the worker.")
@click.option(
    "--sbatch",
    "more",
    multiple=True,
    metavar="OPTION",
    help="An option passed to sbatch unchanged.",
)
@click.option("--print", "shows", is_flag=True, help="Print the script and submit nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: job and script.")
@speaks_plainly
def submit(
    spool: str,
    workers: int,
    cpus: int,
    memory: str | None,
    limit: str | None,
    account: str | None,
    qos: str | None,
    partition: str | None,
    mlflow: str | None,
    setup: tuple[str, ...],
    more: tuple[str, ...],
    shows: bool,
    as_json: bool,
) -> None:
    """Submit workers for SPOOL to Slurm: CPU jobs that leave when every job is done or parked.

    The spool and the registry must be seen by the nodes.
    """
    from torchett.launch.scheduler.sbatch import submit as hand_over
    from torchett.levers.publish.spool.batch_script import WorkerBatch, worker_script

    found = Path(sys.executable).parent / "ett"
    batch = WorkerBatch(
        spool=spool if "://" in spool else os.path.abspath(spool),
        ett=(str(found),) if found.exists() else (sys.executable, "-m", "torchett"),
        workers=workers,
        cpus=cpus,
        memory=memory,
        time=limit,
        account=account,
        qos=qos,
        partition=partition,
        work=("--mlflow", mlflow) if mlflow else (),
        setup=setup,
        more=more,
    )
    script = worker_script(batch)
    if shows:
        click.echo(script, nl=False)
        return
    number = hand_over(script, os.environ)
    if as_json:
        print_json({"job": number, "script": script})
    else:
        click.echo(number)
