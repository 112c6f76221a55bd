"""`ett fleet …`: the ledgers of many jobs, in one table."""

from torchett.cli.fleet.group import fleet

__all__ = ["fleet"]
