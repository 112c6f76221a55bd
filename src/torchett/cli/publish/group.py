"""`ett publish …`: from an anchor checkpoint to a served version, without the training devices."""

import click

from torchett.cli.publish.jobs import add, jobs, retry, work
from torchett.cli.publish.push import push
from torchett.cli.publish.serving import fetch, serve, serve_check
from torchett.cli.publish.submit import submit
from torchett.cli.publish.versions import gc, ls, promote, rollback, show, verify


@click.group()
def publish() -> None:
    """Publishing: jobs, workers, versions, aliases with their history, and serving to try."""


VERSIONS = (ls, show, promote, rollback, verify, gc)
for command in (add, work, submit, jobs, retry, *VERSIONS, push, fetch, serve_check, serve):
    publish.add_command(command)
