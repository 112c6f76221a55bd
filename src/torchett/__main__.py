"""`python -m torchett`: the command `ett`."""

from torchett.cli import ett

ett()
