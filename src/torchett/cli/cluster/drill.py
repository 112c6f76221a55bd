"""`ett drill`: rehearse what a cluster will do to a job, before it does."""

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchett.cli.output import print_json, print_rich, speaks_plainly
from torchett.model.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from torchett.launch.drill.trial import Found

_MOMENTS = ("start_up", "step", "evaluation", "save", "data_wait")


@click.group()
def drill() -> None:
    """Drills: prove that a job saves in time when its hardware is taken away."""


@drill.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--moment",
    "moments",
    multiple=True,
    type=click.Choice(_MOMENTS),
    help="Preempt at this moment only; may be repeated.",
)
@click.option(
    "--signal",
    "signal_name",
    default="TERM",
    show_default=True,
    type=click.Choice(["TERM", "USR1"]),
    help="The first signal; after USR1, SIGTERM follows at half of the grace time.",
)
@click.option(
    "--to",
    "receiver",
    default="all",
    show_default=True,
    type=click.Choice(["all", "launcher"]),
    help="Signal every process, as Slurm does, or the first one, as Kubernetes does.",
)
@click.option("--grace", default="30s", show_default=True, help="Time from the signal to the kill.")
@click.option(
    "--within", default="120s", show_default=True, help="How long to wait for a moment to occur."
)
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Keep the records and logs in this folder."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@speaks_plainly
def preempt(
    moments: tuple[str, ...],
    signal_name: str,
    receiver: str,
    grace: str,
    within: str,
    keep: Path | None,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Preempt COMMAND in each of five moments and say what was lost.

    COMMAND is run once for each moment and goes on from its own last checkpoint. Exit code 1 if a
    finished step was lost, the job did not leave within the grace, or a moment that was asked for
    with --moment did not come. Evaluation is looked for in all five, and left out if there is
    none.
    """
    from torchett.cli.cluster.schedule import _seconds
    from torchett.launch.command import command_of
    from torchett.launch.drill.trial import Site
    from torchett.launch.drill.trial import drill as played

    if not command:
        raise InputError("ett drill preempt: expected a command after --, found none")
    command_of(command, False)  # what cannot be started is said here
    site = Site(
        number=signal.Signals[f"SIG{signal_name}"],
        to_all=receiver == "all",
        grace_s=_seconds("--grace", grace, above=0),
        within_s=_seconds("--within", within, above=0),
    )
    folder = Path(tempfile.mkdtemp(prefix="ett-drill-")) if keep is None else keep.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if taken := [moment for moment in moments or _MOMENTS if (folder / moment).exists()]:
        raise InputError(f"--keep: expected a folder without earlier drills, found {taken[0]}")
    rows, ett = [], (sys.executable, "-m", "torchett.cli.main")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no trainer is left behind
    for moment in moments or _MOMENTS:
        rows.append(played(moment, command, folder, site, os.environ, ett=ett))
        if not as_json:
            click.echo(f"ett: {moment}: {_verdict(rows[-1], moments)}", err=True)
    if as_json:
        print_json({"grace_s": site.grace_s, "drills": [row.to_json() for row in rows]})
    else:
        print_rich(_page(rows, moments, folder))
    if any(_verdict(row, moments) == "FAILED" for row in rows):
        raise SystemExit(1)


def _verdict(row: "Found", asked: tuple[str, ...]) -> str:
    if not row.seen and not asked and row.moment == "evaluation":
        return "none seen"
    return "passed" if row.passed else "FAILED"


def _page(rows: "list[Found]", asked: tuple[str, ...], folder: Path) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("moment")
    for heading in ("last step", "durable", "steps\nlost", "durable\nafter s", "left\nafter s"):
        table.add_column(heading, justify="right")
    table.add_column("")
    table.add_column("")

    def shown(value: float | None) -> str:
        return "–" if value is None else f"{value:g}" if isinstance(value, int) else f"{value:.2f}"

    for row in rows:
        table.add_row(
            row.moment, shown(row.last_step), shown(row.durable_step), shown(row.lost_steps),
            shown(row.durable_after_s), shown(row.left_after_s), _verdict(row, asked), row.said,
        )  # fmt: skip
    return Group(table, Text(f"records and logs: {folder}", style="dim"))
