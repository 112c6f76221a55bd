"""`ett compile …`: compiles kept, explained and pinned."""

import click

from torchett.cli.doctor import doctor


@click.group("compile")
def compile_() -> None:
    """Compile once, reuse everywhere, recompile never."""


compile_.add_command(doctor)
