"""Write docs/settings.md and docs/commands.md from the code; a test checks that they are current.

./dev docs        or: python docs/generate.py
"""

from collections.abc import Iterator
from inspect import cleandoc
from itertools import groupby
from pathlib import Path

import click

from torchett.cli.main import main
from torchett.launch.settings.switches import DEFAULTS, SWITCHES
from torchett.launch.settings.variables import VARIABLES
from torchett.record.patch_table import TABLE

FOLDER = Path(__file__).parent
GROUPS = {
    "job": "A job",
    "place": "Where it runs",
    "levers": "Levers",
    "checkpoints": "Checkpoints",
    "compile": "Compiled code",
    "tools": "Tools",
    "ours": "Set by `ett run` for the processes of a job",
}


def pages() -> dict[str, str]:
    """The generated pages: name → text."""
    texts = {"settings.md": settings(), "commands.md": commands()}
    return {name: "\n".join(lines) + "\n" for name, lines in texts.items()}


def settings() -> Iterator[str]:
    """The lines of the page on levers and variables."""
    yield "# Settings"
    yield ""
    yield "Every lever with its default and its switch, and every environment variable. This page"
    yield "is generated from the code (`docs/generate.py`). `ett run --explain` prints for one job"
    yield "what would be changed in its processes, and whether it is on here."
    yield ""
    yield "## Levers"
    yield ""
    yield "A lever can be left off by `ett run --without LEVER` or `ETT_WITHOUT=LEVER,…`; `--as-is`"
    yield "leaves off all that changes a job's command or its ranks, `ETT_DISABLE=1` all."
    yield ""
    yield "| lever | default | switch | what it does |"
    yield "|---|---|---|---|"
    rows = [(patch.lever, patch.default, patch.reason) for patch in TABLE]
    rows += [(each.lever, each.default, each.does) for each in SWITCHES if each.does]
    for lever, some in groupby(sorted(rows, key=lambda row: row[0]), lambda row: row[0]):
        yield _lever_row(lever, list(some))
    yield ""
    yield "## What is changed in a trainer"
    yield ""
    yield "Each attribute of torch or another package that torchett may replace. What a version of"
    yield "torch does not have is left out, with one line in the log."
    yield ""
    yield "| target | lever | why |"
    yield "|---|---|---|"
    for patch in sorted(TABLE, key=lambda patch: (patch.lever, patch.target)):
        yield f"| `{patch.target}` | {patch.lever} | {patch.reason} |"
    yield ""
    yield "## Environment variables"
    for group, title in GROUPS.items():
        yield ""
        yield f"### {title}"
        yield ""
        yield "| variable | default | what it does |"
        yield "|---|---|---|"
        for one in (one for one in VARIABLES if one.group == group):
            yield f"| `{one.name}` | {one.default} | {one.does} |"


def _lever_row(lever: str, rows: list[tuple[str, str, str]]) -> str:
    """The lever's row; `rows` are (lever, default, what is done) of each of its parts."""
    switch = next((each.switch for each in SWITCHES if each.lever == lever), f"--without {lever}")
    defaults = dict.fromkeys(DEFAULTS[default] for _, default, _ in rows)
    does = list(dict.fromkeys(what for _, _, what in rows))
    shown = "; ".join(does[:2])
    if len(does) > 2:
        shown += f"; {len(does) - 2} more, see below"
    return f"| {lever} | {', '.join(defaults)} | `{switch}` | {shown} |"


def commands() -> Iterator[str]:
    """The lines of the page on the command line."""
    yield "# Commands"
    yield ""
    yield "The help texts of all commands, generated from the code (`docs/generate.py`)."
    yield "A command that prints a table or a result takes `--json`."
    yield "Bad input ends with one line and exit code 2."
    yield "A RUN is a run's name in `$ETT_RUNS` (else `./ett-runs`), or a path."
    yield ""
    yield "| command | what it does |"
    yield "|---|---|"
    for name, command in sorted(main.commands.items()):
        yield f"| [`ett {name}`](#ett-{name}) | {_first_line(command)} |"
    for name, command in sorted(main.commands.items()):
        yield from _command(command, f"ett {name}", 2)


def _command(command: click.Command, name: str, level: int) -> Iterator[str]:
    """A command's section, and those of its own commands."""
    words = " ".join(one.make_metavar(click.Context(command)) for one in _arguments(command))
    yield ""
    yield f"{'#' * level} {name}"
    yield ""
    if not isinstance(command, click.Group):
        yield f"`{name} [OPTIONS]{' ' + words if words else ''}`"
        yield ""
    yield from (line.rstrip() for line in cleandoc(command.help or "").splitlines())
    options = [one for one in command.params if isinstance(one, click.Option)]
    if options:
        yield ""
        yield "| option | what it says |"
        yield "|---|---|"
    for one in options:
        names, said = one.get_help_record(click.Context(command)) or ("", "")
        cells = (" ".join(cell.split()).replace("|", chr(92) + "|") for cell in (names, said))
        yield "| `{}` | {} |".format(*cells)
    if isinstance(command, click.Group):
        for inner, its in sorted(command.commands.items()):
            yield from _command(its, f"{name} {inner}", level + 1)


def _arguments(command: click.Command) -> list[click.Argument]:
    return [one for one in command.params if isinstance(one, click.Argument)]


def _first_line(command: click.Command) -> str:
    return cleandoc(command.help or "").partition("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
