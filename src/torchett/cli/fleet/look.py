"""`ett fleet ls`, `show` and `worst`: which jobs there are, and where their time went."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.fleet.opened import (
    fleet_option,
    json_option,
    open_fleet,
    plain,
    print_rows,
    window_options,
)
from torchett.cli.output import print_json, speaks_plainly
from torchett.launch.labels import parsed_labels
from torchett.model.errors import InputError

if TYPE_CHECKING:
    from torchett.fleet.figures import Share

_HOUR_NS = 3.6e12
_MOST = click.IntRange(1, 1_000_000)


@click.command()
@click.option("-n", "most", default=50, show_default=True, type=_MOST, help="How many jobs.")
@click.option("--where", multiple=True, metavar="LABEL=VALUE", help="Only jobs with this label.")
@json_option
@fleet_option
@speaks_plainly
def ls(most: int, where: tuple[str, ...], as_json: bool, folder: Path | None) -> None:
    """List jobs, newest first."""
    with open_fleet(folder) as opened:
        from torchett.fleet.figures import newest

        rows = newest(opened, most, parsed_labels(where, "--where"))
    _print_jobs(rows, as_json)


@click.command()
@click.argument("job", required=False)
@click.option("--project", help="Project of the job, if several have a job of this name.")
@click.option("--by", metavar="LABEL", help="A row for each team, model, project, job, …")
@click.option("--where", multiple=True, metavar="LABEL=VALUE", help="Only jobs with this label.")
@window_options
@json_option
@fleet_option
@speaks_plainly
def show(
    job: str | None,
    project: str | None,
    by: str | None,
    where: tuple[str, ...],
    window: str | None,
    since: str | None,
    until: str | None,
    as_json: bool,
    folder: Path | None,
) -> None:
    """Show ETT% and accounts, of all jobs, by a label, or of one JOB."""
    given = parsed_labels(where, "--where") | ({"project": project} if project else {})
    if job is not None and (by or where or window or since or until):
        raise InputError("ett fleet show JOB: shows the whole job: drop --by, --where and --window")
    if by == "job" and set(given) - {"project"}:
        raise InputError("ett fleet show --by job: --where takes project=… only")
    with open_fleet(folder) as opened:
        from torchett.fleet.figures import job_report, shares, whole
        from torchett.fleet.windows import now_utc, window_of

        if job is not None:
            _print_job(job_report(opened, job, project), as_json)
            return
        span = window_of(window, since, until, now_utc())
        parts = shares(opened, by, span, given)
    total = whole(parts)
    if as_json:
        rows = [part.to_json() for part in parts] if by else []
        shown = {"window": span.to_json(), "by": by, "rows": rows, "total": total.to_json()}
        print_json(shown)
        return
    if by:
        _print_shares(parts, total, by)
    else:
        _print_accounts(total)


@click.command()
@click.option(
    "--order",
    default="lost",
    show_default=True,
    type=click.Choice(["lost", "ett", "failures", "start", "recover"]),
    help="By rank-hours lost, ETT%, failures, Time to Start or Time to Recover.",
)
@click.option("-n", "most", default=20, show_default=True, type=_MOST, help="How many jobs.")
@window_options
@json_option
@fleet_option
@speaks_plainly
def worst(
    order: str,
    most: int,
    window: str | None,
    since: str | None,
    until: str | None,
    as_json: bool,
    folder: Path | None,
) -> None:
    """List the jobs that lost most, with their largest loss.

    Without a window: those of the last month.
    """
    with open_fleet(folder) as opened:
        from torchett.fleet.figures import worst as find
        from torchett.fleet.windows import now_utc, window_of

        window = window or (None if since or until else "month")
        rows = find(opened, order, most, window_of(window, since, until, now_utc()))
    if as_json:
        print_rows(rows, [], as_json)
        return
    shown = [
        {
            "job": row["job"],
            "state": row["state"],
            "ranks": row["ranks"],
            "ETT%": row["ett_percent"],
            "lost rank-h": row["lost_ns"] / _HOUR_NS,
            "mostly": row["largest_loss"],
            "of it rank-h": row["largest_loss_ns"] / _HOUR_NS,
            "failures": row["infra_failures"] + row["scheduler_failures"],
        }
        for row in rows
    ]
    print_rows(shown, list(shown[0]) if shown else ["job"], as_json)


def _print_jobs(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_rows(rows, [], as_json)
        return
    shown = [
        {
            "project": row["project"],
            "job": row["job"],
            "state": row["state"],
            "began": f"{row['began']:%Y-%m-%d %H:%M}",
            "ranks": row["ranks"],
            "attempts": row["attempts"],
            "ETT%": row["ett_percent"],
            "failures": row["infra_failures"] + row["scheduler_failures"],
            "last step": row["last_step"],
        }
        for row in rows
    ]
    print_rows(shown, list(shown[0]) if shown else ["job"], as_json)


def _print_shares(parts: list["Share"], total: "Share", by: str) -> None:
    rows = []
    shown = [group for group, ns in total.groups.items() if ns or group == "unattributed"]
    for part, label in [*((part, part.label or "–") for part in parts), (total, "all")]:
        row: dict[str, Any] = {by: label, "jobs": part.jobs, "ETT%": part.ett_percent}
        row["rank-h"] = part.rank_ns / _HOUR_NS
        groups = part.groups
        rows.append(row | {group: groups[group] / _HOUR_NS for group in shown})
    print_rows(rows, list(rows[0]), as_json=False)


def _print_accounts(total: "Share") -> None:
    click.echo(
        f"{total.jobs:,} jobs · {total.rank_ns / _HOUR_NS:,.1f} rank-h · "
        f"ETT% {total.ett_percent:.2f}"
    )
    rows: list[dict[str, Any]] = [
        {
            "group": group,
            "account": name,
            "rank-h": ns / _HOUR_NS,
            "%": 100 * ns / max(total.rank_ns, 1),
        }
        for group, accounts in total.tree.items()
        for name, ns in accounts.items()
        if ns
    ]
    rows.sort(key=lambda row: -row["rank-h"])
    print_rows(rows, ["group", "account", "rank-h", "%"], as_json=False)


def _print_job(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({key: plain(value) for key, value in report.items()})
        return
    click.echo(
        f"{report['project']}/{report['job']} · {report['state']} · {report['ranks']} ranks · "
        f"{report['attempts']} attempts · ETT% {report['ett_percent']:.2f}"
    )
    whole = max(report["rank_seconds"], 1e-9)
    rows = [
        {"account": name, "rank-s": seconds, "%": 100 * seconds / whole}
        for name, seconds in sorted(report["accounts"].items(), key=lambda one: -one[1])
    ]
    print_rows(rows, ["account", "rank-s", "%"], as_json=False)
