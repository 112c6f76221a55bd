"""`ett compile doctor` and `ett compile kernels`: why compiles happened, what they cost."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchett.compile.facts import Compile
    from torchett.runs.reader import RunReader


def compiles_of(reader: "RunReader") -> "list[tuple[int, int, Compile]]":
    """Attempt, rank and compile: all that the job's processes wrote down."""
    from torchett.compile.facts import KIND, stray_facts
    from torchett.compile.summary import compiles_in

    return compiles_in([*reader.facts(KIND), *stray_facts(reader.run)])
