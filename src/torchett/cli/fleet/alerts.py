"""`ett fleet alerts`: what is wrong in a fleet, since when, and who acknowledged it."""

import getpass
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.fleet.opened import fleet_option, open_fleet, print_rows
from torchett.cli.output import json_option, print_json, print_result, speaks_plainly
from torchett.launch.labels import parsed_labels
from torchett.model.errors import InputError

if TYPE_CHECKING:
    from torchett.fleet.detector.alerts import Alert

_UNITS = {"m": 60, "h": 3600, "d": 86400}


@click.group(invoke_without_command=True)
@click.option("--all", "everything", is_flag=True, help="Also show alerts that are over.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array of objects.")
@fleet_option
@click.pass_context
@speaks_plainly
def alerts(context: click.Context, everything: bool, as_json: bool, folder: Path | None) -> None:
    """Show, acknowledge and mute alerts.

    `ett fleet alerts watch` looks for them.
    """
    if context.invoked_subcommand is not None:
        return
    from torchett.fleet.detector.alerts import Alerts

    now_s = time.time()
    with open_fleet(folder) as opened:
        known = Alerts(opened.state)
        found = known.open(now_s) + (known.history(now_s) if everything else [])
    if as_json:
        print_json([one.to_json() for one in found])
    else:
        rows = [_row(one) for one in found]
        print_rows(rows, ["id", "state", "severity", "since", "what"], False)


def _row(one: "Alert") -> dict[str, Any]:
    state = "over" if one.closed_s else "muted" if one.muted else "open"
    if state == "open" and (act := one.acknowledged):
        state = f"acknowledged by {act.who or 'somebody'}"
    since = time.strftime("%d %b %H:%M", time.gmtime(one.opened_s))
    return {"id": one.id, "state": state, "severity": one.severity, "since": since,
            "what": " ".join(one.text.split())[:400]}  # fmt: skip


@alerts.command()
@click.option(
    "--every",
    default=60.0,
    show_default=True,
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option("--once", is_flag=True, help="Look once; exit code 1 if anything is open.")
@fleet_option
@speaks_plainly
def watch(every: float, once: bool, folder: Path | None) -> None:
    """Look for regressions and exceeded limits.

    Alerts are sent to the receivers in FLEET/alerts.toml.
    """
    from torchett.fleet.detector.regressions import Detector
    from torchett.fleet.detector.settings import read_settings
    from torchett.fleet.detector.watch import look

    with open_fleet(folder) as opened:
        detector = Detector(read_settings(opened.folder))
        while True:
            found = look(opened, detector, time.time())
            for one in found.opened:
                click.echo(f"ett: alert {one.id} ({one.severity}): {one.text[:400]}", err=True)
            for one in found.closed:
                click.echo(f"ett: alert {one.id} is over: {one.text[:400]}", err=True)
            for error in found.errors:
                click.echo(f"ett: not sent: {error}", err=True)
            if once:
                raise SystemExit(1 if _any_open(opened) else 0)
            time.sleep(every)


def _any_open(opened: Any) -> bool:
    from torchett.fleet.detector.alerts import Alerts

    return any(not one.muted for one in Alerts(opened.state).open(time.time()))


@alerts.command()
@click.argument("alert", type=int)
@click.option("--note", metavar="TEXT", help="What is being done.")
@json_option
@fleet_option
@speaks_plainly
def ack(alert: int, note: str | None, as_json: bool, folder: Path | None) -> None:
    """Acknowledge an alert: you are working on it."""
    from torchett.fleet.detector.alerts import Alerts

    with open_fleet(folder) as opened:
        Alerts(opened.state).acknowledge(alert, getpass.getuser(), note, time.time())
    result = {"alert": alert, "acknowledged_by": getpass.getuser(), "note": note}
    print_result(result, f"alert {alert} is acknowledged", as_json)


@alerts.command()
@click.option("--rule", help="Mute only this rule: regression, silent, stalled, not_durable, …")
@click.option(
    "--label",
    multiple=True,
    metavar="KEY=VALUE",
    help="Mute only alerts about jobs with this label.",
)
@click.option("--for", "lasting", default="1d", show_default=True, help="How long: 30m, 8h or 2d.")
@click.option("--note", metavar="TEXT", help="Why.")
@json_option
@fleet_option
@speaks_plainly
def mute(
    rule: str | None,
    label: tuple[str, ...],
    lasting: str,
    note: str | None,
    as_json: bool,
    folder: Path | None,
) -> None:
    """Mute a rule or some jobs for a while.

    Muted alerts are shown and not sent.
    """
    from torchett.fleet.detector.alerts import Alerts

    now_s = time.time()
    until_s = now_s + parsed_time(lasting)
    with open_fleet(folder) as opened:
        number = Alerts(opened.state).mute(
            rule,
            parsed_labels(label, "--label"),
            until_s,
            who=getpass.getuser(),
            note=note,
            now_s=now_s,
        )
    result = {"mute": number, "until_s": until_s}
    print_result(result, f"mute {number}; ett fleet alerts unmute {number}", as_json)


@alerts.command()
@click.argument("number", type=int)
@json_option
@fleet_option
@speaks_plainly
def unmute(number: int, as_json: bool, folder: Path | None) -> None:
    """End a mute."""
    from torchett.fleet.detector.alerts import Alerts

    with open_fleet(folder) as opened:
        Alerts(opened.state).unmute(number, time.time())
    print_result({"mute": number, "ended": True}, f"mute {number} is over", as_json)


def parsed_time(text: str) -> float:
    """30m, 8h or 2d in seconds."""
    found = re.fullmatch(r"(\d{1,6})([mhd])", text)
    if not found or not int(found[1]):
        raise InputError(f"--for: expected a time such as 30m, 8h or 2d, found '{text}'")
    return float(found[1]) * _UNITS[found[2]]


@click.command()
@click.option("--every", default="1m", show_default=True, help="How often they are evaluated.")
@speaks_plainly
def rules(every: str) -> None:
    """Print recording and alert rules for Prometheus.

    They are for the metrics of `ett serve --fleet`.
    """
    from torchett.sinks.rules import rules_yaml

    if not re.fullmatch(r"\d{1,5}[smh]", every):
        raise InputError(f"--every: expected a time such as 30s or 1m, found '{every}'")
    click.echo(rules_yaml(every), nl=False)


@click.command()
@speaks_plainly
def dashboard() -> None:
    """Print a Grafana dashboard as JSON."""
    from torchett.sinks import rules as made

    print_json(made.dashboard())
