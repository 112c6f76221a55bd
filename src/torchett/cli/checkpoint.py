"""`ett checkpoint …`."""

import click

from torchett.cli.stored import diff, ls, prune, verify_


@click.group()
def checkpoint() -> None:
    """Checkpoints: list, verify, prune and compare them."""


for command in (ls, verify_, prune, diff):
    checkpoint.add_command(command)
