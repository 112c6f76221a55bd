"""`ett failure`: what a failure was, which rank began it, and what another attempt needs."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchett.cli.output import print_json, print_rich, speaks_plainly
from torchett.model.errors import InputError, RunError

if TYPE_CHECKING:
    from rich.table import Table

    from torchett.failures.verdict import Verdict
    from torchett.restarts.sources import Sources


@click.group()
def failure() -> None:
    """Failures: say what ended a job, and whether another attempt may help."""


@failure.command()
@click.argument("names", metavar="FILE…|RUN", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a file, one a line.")
@click.option(
    "--rules",
    "own",
    multiple=True,
    type=click.Path(path_type=Path),
    help="TOML with rules of your own, tried first; also $ETT_FAILURE_RULES (: between).",
)
@click.option(
    "--good",
    type=click.Path(path_type=Path),
    help="The log of an attempt that went well: its lines are no evidence.",
)
@speaks_plainly
def classify(
    names: tuple[str, ...], as_json: bool, own: tuple[Path, ...], good: Path | None
) -> None:
    """Name the category of a failure, and the line that shows it.

    FILE is a log (- for stdin), an error.json, a pod as JSON, or a flight recorder's dump; a
    folder is a run, or the logs of one job.
    """
    from torchett.failures.rules import rules_with
    from torchett.restarts.sources import sources

    given = [Path(name) for name in os.environ.get("ETT_FAILURE_RULES", "").split(":") if name]
    reader = sources(rules_with([*own, *given]), good)
    verdicts = _verdicts(names, reader)
    if as_json:
        for name, verdict in verdicts:
            print_json({"file": name, **verdict.to_json()})
        return
    print_rich(_table(verdicts))


def _verdicts(names: tuple[str, ...], reader: "Sources") -> "list[tuple[str, Verdict]]":
    """A verdict for each name, in order. Files are read together, so that dumps are compared."""
    from torchett.runs.folder import find_run, is_run

    files = [Path(name) for name in names if name == "-" or Path(name).is_file()]
    of_files = {str(path): verdict for path, verdict in reader.of_files(files)}
    found = []
    for name in names:
        if str(Path(name)) in of_files:
            found.append((name, of_files[str(Path(name))]))
        elif Path(name).is_dir() and not is_run(Path(name)):
            found.append((name, reader.of_folder(Path(name))))
        else:
            try:
                found.append((name, reader.of_run(find_run(name))))
            except RunError as error:
                raise InputError(f"{name}: expected a file, a folder or a run: {error}") from None
    return found


def _table(verdicts: "list[tuple[str, Verdict]]") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("file", "category", "domain", "outlook", "evidence"):
        table.add_column(heading, overflow="fold")
    for name, verdict in verdicts:
        lines = []
        if verdict.evidence is not None:
            line = verdict.evidence.line
            place = verdict.evidence.file if verdict.evidence.file != name else "line"
            lines.append(f"{place}:{line.number}: {line.text.strip()[:200]}")
        if verdict.initiating_ranks:
            lines.append("begun by rank " + ", ".join(map(str, verdict.initiating_ranks)))
        if verdict.absent:
            lines.append("absent: rank " + ", ".join(map(str, verdict.absent)))
        cells = (name, verdict.category, verdict.domain, verdict.outlook.value)
        table.add_row(*map(Text, cells), Text("\n".join(lines) or "no line that names a cause"))
    return table
