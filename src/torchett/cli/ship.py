"""`ett ship`: a run, sent to a server after the fact or while it goes on."""

import os
import time

import click

from torchett.cli.output import json_option, print_result, speaks_plainly
from torchett.model.errors import InputError, RunError


@click.command()
@click.argument("run")
@click.argument("url", required=False)
@click.option("--follow", is_flag=True, help="Continue while the job runs, until Ctrl-C.")
@click.option(
    "--within",
    default=600.0,
    show_default=True,
    type=click.FloatRange(0.1),
    help="Without --follow: give up after this many seconds.",
)
@json_option
@speaks_plainly
def ship(run: str, url: str | None, follow: bool, within: float, as_json: bool) -> None:
    """Send RUN to the `ett serve` at URL (else $ETT_SHIP); what is there already is not sent.

    A token is read from $ETT_SHIP_TOKEN, or from the file $ETT_SHIP_TOKEN_FILE.
    """
    from torchett.runs.folder import find_run
    from torchett.ship.backlog import Backlog
    from torchett.ship.client import RefusedError, Server, Shipper
    from torchett.ship.process import follow as go_on

    url = url or os.environ.get("ETT_SHIP")
    if not url:
        raise InputError("ett ship: expected a URL, or ETT_SHIP")
    server, folder = Server.of(url, os.environ), find_run(run)

    def say(text: str) -> None:
        click.echo(f"ett: {text}", err=True)

    shipper = Shipper(Backlog(folder), server, say=say)
    try:
        if follow:
            try:
                go_on(shipper, lambda: False)
            except KeyboardInterrupt:
                shipper.flush(10.0)
        elif not shipper.flush(within, time.sleep):
            raise RunError(f"{folder}: not all of it is on {server}: try again")
    except RefusedError as error:
        raise RunError(f"{folder}: not shipped: {error}") from None
    finally:
        shipper.close()
    print_result(
        {"run": folder.name, "server": str(server), "sent_bytes": shipper.sent_bytes},
        f"{folder.name} is on {server}: {shipper.sent_bytes:,} bytes sent",
        as_json,
    )
