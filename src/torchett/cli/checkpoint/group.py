"""`ett checkpoint …`: what is stored, and how often to store it."""

import click

from torchett.cli.checkpoint.files import export_, import_
from torchett.cli.checkpoint.plan import plan
from torchett.cli.checkpoint.stored import diff, ls, prune, verify_


@click.group()
def checkpoint() -> None:
    """Checkpoints: plan how often to save; list, verify, prune, compare, export, import."""


for command in (plan, ls, verify_, prune, diff, export_, import_):
    checkpoint.add_command(command)
