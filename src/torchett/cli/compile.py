"""`ett compile …`: compiles kept, explained and pinned."""

import click

from torchett.cli.doctor import doctor, kernels


@click.group("compile")
def compile_() -> None:
    """Compile once, reuse everywhere, recompile never."""


compile_.add_command(doctor)
compile_.add_command(kernels)
