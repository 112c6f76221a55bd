"""`ett run --explain`: what torchett changes in a process, and what each change is switched by.

pins               on   ett run                                     --no-pins
  kernels of the user's are tuned once: winners are kept beside Inductor's cache
    triton.runtime.autotuner:Autotuner.__init__
    triton.runtime.autotuner:Autotuner.cache                off: triton is not installed
"""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from torchett.cli.output import print_json, print_rich

if TYPE_CHECKING:
    from rich.text import Text

    from torchett.launch.settings.switches import Explained


def show_levers(lines: "Sequence[Explained]", *, as_json: bool) -> None:
    """Print the table, one heading for each lever."""
    if as_json:
        print_json({"levers": [line.to_json() for line in lines]})
        return
    from rich.text import Text

    shown = Text()
    ordered = sorted(lines, key=lambda line: line.lever)
    for lever, rows in groupby(ordered, key=lambda line: line.lever):
        _lever(shown, lever, list(rows))
    shown.append("ett run --without NAME leaves a lever off, or a single target as it is", "dim")
    print_rich(shown)


def _lever(shown: "Text", lever: str, rows: "list[Explained]") -> None:
    on = [row for row in rows if row.on]
    first = (on or rows)[0]
    shown.append(f"{lever:<19}", "bold")
    shown.append("on   " if on else "off  ", "green" if on else "yellow")
    shown.append(f"{first.why:<46} {first.switch}\n")
    for reason, alike in groupby(rows, key=lambda row: row.reason):
        shown.append(f"  {reason}\n")
        for row in alike:
            if row.target:
                differs = row.why != first.why
                shown.append(f"    {row.target}", "dim")
                shown.append(f"  {'on' if row.on else 'off'}: {row.why}\n" if differs else "\n")
