"""What the commands of `ett fleet` share: which fleet they work on, and rows as a table."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.output import print_json, print_rich
from torchett.model.errors import InputError

if TYPE_CHECKING:
    from torchett.fleet import Fleet


def fleet_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--fleet DIR: which fleet a command works on."""
    return click.option(
        "--fleet",
        "folder",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="The fleet's folder (else $ETT_FLEET, else ./ett-fleet).",
    )(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")(command)


def window_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--window, --since and --until."""
    for option in (
        click.option("--until", metavar="DATE", help="Count time before this date (UTC)."),
        click.option(
            "--since",
            metavar="DATE",
            help="Count time from this date on, such as 2026-11-01 (UTC).",
        ),
        click.option(
            "--window",
            type=click.Choice(["day", "week", "month", "all"]),
            help="The last 24 hours, 7 days or 30 days, or all.",
        ),
    ):
        command = option(command)
    return command


def open_fleet(folder: Path | None, *, make: bool = False) -> "Fleet":
    """The fleet of this folder, or one line on what to install for it."""
    try:
        from torchett.fleet import Fleet
    except ImportError as error:
        raise InputError(
            f"ett fleet: needs {error.name}, which is not installed: pip install 'torchett[fleet]'"
        ) from None
    return Fleet.open(folder, make=make)


def print_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str], as_json: bool) -> None:
    """Print rows as a table, or as one JSON array."""
    if as_json:
        print_json([{key: plain(value) for key, value in row.items()} for row in rows])
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in names:
        numeric = any(isinstance(row[name], int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_shown(row[name]) for name in names))
    print_rich(table)
    if not rows:
        click.echo("ett: no rows", err=True)
    sys.stdout.flush()


def plain(value: Any) -> Any:
    """As JSON has it: whole numbers stay whole, times are ISO 8601 in UTC."""
    if isinstance(value, datetime):
        return f"{value.isoformat()}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and value != value:
        return None
    return value if isinstance(value, int | float | str | list | dict | None) else str(value)


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, int):
        return f"{value:,}"
    text = plain(value)
    return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
