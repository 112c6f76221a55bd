"""`ett fleet`: which commands it has."""

import click

from torchett.cli.fleet.alerts import alerts, dashboard, rules
from torchett.cli.fleet.change import import_, retention, rollup, watch
from torchett.cli.fleet.look import ls, show, worst
from torchett.cli.fleet.sql import export, query, views
from torchett.cli.fleet.tokens import token


@click.group()
def fleet() -> None:
    """The ledgers of many jobs in one table: rolled up once, read by SQL."""


READING = (ls, show, worst, query, views, export, alerts, rules, dashboard)
for command in (*READING, rollup, watch, import_, retention, token):
    fleet.add_command(command)
