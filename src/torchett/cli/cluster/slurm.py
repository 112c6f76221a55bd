"""`ett slurm …`: submit a job, import the jobs there were, guard the cluster's preemptions."""

import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.cluster.slurm_jobs import jobs
from torchett.cli.output import print_json, speaks_plainly
from torchett.model.errors import InputError, RunError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchett.schedule.slurm.guard import Guard


@click.group()
def slurm() -> None:
    """Submit jobs to Slurm so that they can be preempted; import old jobs; guard preemptions."""


slurm.add_command(jobs)


@slurm.command(context_settings={"allow_interspersed_args": False})
@click.option("--name", help="Name of the job (default: the script's).")
@click.option(
    "--nodes", default=1, show_default=True, type=click.IntRange(1), help="Number of nodes."
)
@click.option("--gpus", type=click.IntRange(1), help="GPUs of each node.")
@click.option(
    "--ranks", type=click.IntRange(1), help="Ranks on each node (default: one for each GPU)."
)
@click.option("--time", "limit", metavar="TIME", help="Time limit, in sbatch's format.")
@click.option("--account", help="Slurm account.")
@click.option("--qos", help="Slurm QOS.")
@click.option("--partition", help="Slurm partition.")
@click.option(
    "--grace",
    default=60,
    show_default=True,
    type=click.IntRange(1, 3600),
    help="Seconds before the end at which Slurm warns the job.",
)
@click.option(
    "--max-restarts",
    default=3,
    show_default=True,
    type=click.IntRange(0),
    help="How often failed ranks are restarted inside the allocation.",
)
@click.option(
    "--setup",
    multiple=True,
    metavar="LINE",
    help="A shell line to run before the job; may be repeated.",
)
@click.option(
    "--sbatch",
    "more",
    multiple=True,
    metavar="OPTION",
    help="An option passed to sbatch unchanged; may be repeated.",
)
@click.option("--print", "shows", is_flag=True, help="Print the script and submit nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: job and script.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@speaks_plainly
def submit(
    name: str | None,
    nodes: int,
    gpus: int | None,
    ranks: int | None,
    limit: str | None,
    account: str | None,
    qos: str | None,
    partition: str | None,
    grace: int,
    max_restarts: int,
    setup: tuple[str, ...],
    more: tuple[str, ...],
    shows: bool,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Write a batch script for COMMAND and submit it.

    COMMAND is a script (train.py --lr 0.1), which gets a torchrun, or torchrun and a script. The
    job is warned before it is preempted, saves, leaves, and is run again under the same number.
    """
    from torchett.launch.command import script_of
    from torchett.launch.scheduler.sbatch import BatchJob, batch_script
    from torchett.launch.scheduler.sbatch import submit as hand_over
    from torchett.record.identity import runs_folder, safe_name

    if not command:
        raise InputError("ett slurm submit: expected a command after --, found none")
    found = Path(sys.executable).parent / "ett"
    torchrun = found.with_name("torchrun")
    ett = (str(found),) if found.exists() else (sys.executable, "-m", "torchett")
    job = BatchJob(
        command=command,
        name=safe_name(name or script_of(command)),
        runs=runs_folder(os.environ).absolute(),
        ett=ett,
        torchrun=str(torchrun) if torchrun.exists() else "torchrun",
        nodes=nodes,
        gpus=gpus,
        ranks=ranks,
        time=limit,
        account=account,
        qos=qos,
        partition=partition,
        grace_s=grace,
        restarts=max_restarts,
        setup=setup,
        more=more,
    )
    script = batch_script(job)
    if shows:
        click.echo(script, nl=False)
        return
    job.runs.mkdir(parents=True, exist_ok=True)  # Slurm makes no folder for a log
    number = hand_over(script, os.environ)
    if as_json:
        print_json({"job": number, "script": script})
    else:
        click.echo(number)


@slurm.command()
@click.option(
    "--for",
    "preempting",
    multiple=True,
    required=True,
    metavar="QOS",
    help="QOS of the jobs that may get GPUs this way; may be repeated.",
)
@click.option(
    "--from",
    "preempted",
    multiple=True,
    required=True,
    metavar="QOS",
    help="QOS of the jobs that may be stopped; may be repeated.",
)
@click.option(
    "--policy",
    "policy_name",
    default="ours",
    show_default=True,
    help="Policy that chooses the jobs; `ett schedule simulate` compares policies.",
)
@click.option(
    "--grace",
    default="60s",
    show_default=True,
    help="Time for a job to save and exit before it is requeued by force.",
)
@click.option(
    "--restart",
    default="202s",
    show_default=True,
    help="Restart time of jobs that do not record it.",
)
@click.option(
    "--signal",
    "signal_name",
    default="USR1",
    show_default=True,
    help="Signal that tells a job to save and exit.",
)
@click.option(
    "--every",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.1),
    help="Seconds between two looks at the queue.",
)
@click.option(
    "--for-seconds",
    type=click.FloatRange(0),
    help="Exit after this many seconds (default: run until stopped).",
)
@click.option("--dry-run", is_flag=True, help="Say which jobs it would stop, and stop none.")
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines.")
@speaks_plainly
def guard(
    preempting: tuple[str, ...],
    preempted: tuple[str, ...],
    policy_name: str,
    grace: str,
    restart: str,
    signal_name: str,
    every: float,
    for_seconds: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Preempt the jobs that lose least.

    Needs the rights of a Slurm operator. Jobs of the --from QOS are stopped for waiting jobs of
    the --for QOS, chosen by what they say about their checkpoints: signalled, waited for,
    requeued without Slurm's two minutes. Slurm's own preemption should be off for these QOS.
    """
    from torchett.cli.cluster.schedule import _seconds
    from torchett.schedule.policy import policy_named
    from torchett.schedule.slurm.choice import Habit
    from torchett.schedule.slurm.cluster import Slurm
    from torchett.schedule.slurm.guard import Guard, Rules

    if both := set(preempting) & set(preempted):
        raise InputError(f"--for and --from: expected different QOS, found {min(both)} in both")
    policy = policy_named(policy_name)
    if not policy.preempts:
        raise InputError(f"--policy: expected one that preempts, found '{policy_name}'")
    rules = Rules(
        policy=policy,
        preempting=frozenset(preempting),
        preempted=frozenset(preempted),
        habit=Habit(
            grace_s=_seconds("--grace", grace, above=0), restart_s=_seconds("--restart", restart)
        ),
        signal=signal_name,
        dry=dry_run,
    )

    def tell(event: dict[str, Any]) -> None:
        click.echo(json.dumps(event) if as_json else _event_line(event), err=not as_json)

    watch = Guard(Slurm(os.environ), rules, tell)
    watch.round(time.time())  # what is wrong with Slurm's commands is said at once
    if not dry_run:
        watch.tidy()
    _guard_until(watch, every, math.inf if for_seconds is None else for_seconds, tell)


def _guard_until(
    watch: "Guard", every_s: float, seconds: float, tell: "Callable[[dict[str, Any]], None]"
) -> None:
    """Rounds until the time is over or somebody stops it; reservations are given back."""

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            began = time.monotonic()
            try:
                watch.round(time.time())
            except RunError as error:  # a controller that restarts: the next round tries again
                tell({"t": round(time.time(), 3), "event": "error", "said": str(error)})
            time.sleep(max(0.05, every_s - (time.monotonic() - began)))
    except KeyboardInterrupt:
        pass
    finally:
        watch.close()


def _event_line(event: dict[str, Any]) -> str:
    facts = " · ".join(
        f"{key} {value}" for key, value in event.items() if key not in ("t", "event")
    )
    moment = time.strftime("%H:%M:%S", time.localtime(event["t"]))
    return f"{moment} {event['event']:10} {facts}"
