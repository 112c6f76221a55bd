"""`ett checkpoint …`: what is stored, and how often to store it."""

import click

from torchett.cli.plan import plan
from torchett.cli.stored import diff, ls, prune, verify_


@click.group()
def checkpoint() -> None:
    """Checkpoints: plan how often to save; list, verify, prune and compare what was saved."""


for command in (plan, ls, verify_, prune, diff):
    checkpoint.add_command(command)
