"""`ett checkpoint …`."""

import click

from torchett.cli.plan import plan


@click.group()
def checkpoint() -> None:
    """Checkpoints: plan how often to save."""


checkpoint.add_command(plan)
