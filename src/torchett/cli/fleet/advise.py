"""`ett fleet advise`: GPU-hours a week that each lever would win over a fleet, by team."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchett.cli.fleet.opened import fleet_option, open_fleet
from torchett.cli.output import print_json, print_rich, speaks_plainly

if TYPE_CHECKING:
    from rich.console import RenderableType

    from torchett.advise.fleet import FleetAdvice
    from torchett.advise.priors import Range

_MOST_TEAMS = 4


@click.command("advise")
@click.option("--days", default=7, show_default=True, type=click.IntRange(1), help="Count"
              " jobs that ended in this many days before the fleet's newest row.")  # fmt: skip
@click.option("--by", default="team", show_default=True, help="The label to sum by.",
              type=click.Choice(["team", "model", "cluster", "queue", "user"]))  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@fleet_option
@speaks_plainly
def fleet_advise(days: int, by: str, as_json: bool, folder: Path | None) -> None:
    """Sum what each lever would save over all jobs.

    The sums are GPU-hours a week, by lever and by team.
    """
    from torchett.advise.fleet import ATTEMPTS_SQL, JOBS_SQL, fleet_advice

    with open_fleet(folder) as opened:
        jobs = opened.query(JOBS_SQL, [days]).to_pylist()
        attempts = opened.query(ATTEMPTS_SQL, [days]).to_pylist()
    advice = fleet_advice(jobs, attempts, days=days, by=by)
    if as_json:
        print_json(advice.to_json() | {"by": by})
    else:
        print_rich(_page(advice, by))


def _page(advice: "FleetAdvice", by: str) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from torchett.report.words import plural

    head = Text(f"{plural(advice.jobs, 'job')} of {plural(advice.days, 'day')}: ", style="bold")
    head.append(f"{advice.hours:,.1f} GPU-hours a week, {advice.lost_hours:,.1f} not effective")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("lever", "GPU-hours a week", "80%", "jobs", f"by {by}"):
        left = title in ("lever", f"by {by}")
        table.add_column(title, justify="left" if left else "right", overflow="fold")
    for gain in advice.gains:
        table.add_row(gain.lever, *_hours(gain.hours), f"{gain.jobs:,}", _teams(gain.by_team))
    if advice.together is not None:
        row = (*_hours(advice.together), f"{advice.jobs:,}", _teams(advice.by_team))
        table.add_row("every job's best set", *row, style="bold")
    note = "Levers win partly the same seconds: they do not add up. Rows do not say which were on."
    return Group(head, Text(), table, Text(), Text(note, style="dim"))


def _hours(given: "Range") -> tuple[str, str]:
    return f"{given.mid:+,.2f}", f"{given.low:+,.2f} … {given.high:+,.2f}"


def _teams(by_team: Mapping[str, float]) -> str:
    return ", ".join(f"{team} {hours:+,.2f}" for team, hours in list(by_team.items())[:_MOST_TEAMS])
