"""`ett fleet token`: tokens to write to a fleet's server, and to read from it."""

from pathlib import Path

import click

from torchett.cli.fleet.opened import fleet_option, json_option, open_fleet, print_rows
from torchett.cli.output import print_json, print_result, speaks_plainly
from torchett.model.errors import InputError


@click.group()
def token() -> None:
    """Make, list and revoke tokens for access from other machines."""


@token.command()
@click.argument("name")
@click.option(
    "--may",
    default="write",
    show_default=True,
    type=click.Choice(["write", "read"]),
    help="write: ship runs; read: see the pages.",
)
@click.option(
    "--project",
    help="write: the project of the jobs it ships; read: the one it can see (default: all).",
)
@json_option
@fleet_option
@speaks_plainly
def add(name: str, may: str, project: str | None, as_json: bool, folder: Path | None) -> None:
    """Make a token; it is printed once, and only its digest is kept."""
    from torchett.fleet.tokens import add_token

    with open_fleet(folder, make=True) as opened:
        secret = add_token(opened.state, name, may, project)
    if as_json:
        print_json({"name": name, "may": may, "project": project, "token": secret})
    else:
        click.echo(secret)


@token.command("ls")
@json_option
@fleet_option
@speaks_plainly
def ls(as_json: bool, folder: Path | None) -> None:
    """List tokens by name; the secrets are not stored."""
    from torchett.fleet.tokens import list_tokens

    with open_fleet(folder) as opened:
        rows = list_tokens(opened.state)
    print_rows(rows, ["name", "may", "project", "made", "revoked"], as_json)


@token.command()
@click.argument("name")
@json_option
@fleet_option
@speaks_plainly
def revoke(name: str, as_json: bool, folder: Path | None) -> None:
    """Revoke a token."""
    from torchett.fleet.tokens import revoke_token

    with open_fleet(folder) as opened:
        if not revoke_token(opened.state, name):
            raise InputError(f"ett fleet token: no token '{name}': `ett fleet token ls` lists them")
    print_result({"revoked": name}, f"revoked {name}", as_json)
