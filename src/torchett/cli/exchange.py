"""`ett import` and `ett export`: runs from other tools' files, and runs for other tools."""

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.speak import speaks_plainly
from torchett.model.errors import EttError, InputError, RunError

if TYPE_CHECKING:
    from torchett.ledger.ledger import Ledger
    from torchett.runs.reader import RunReader

_IMPORTS = ["events", "goodput", "torchtitan", "log", "csv"]
_EXPORTS = ["events", "perfetto", "tensorboard", "wandb", "mlflow"]


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("run")
@click.option("--format", "form", default="events", type=click.Choice(_IMPORTS), show_default=True)
@click.option(
    "--step", metavar="REGEX", help="log: a step's line, its number in a group; csv: a column."
)
@click.option("--time", metavar="TIME", help="log: a regex or strptime format; csv: a column.")
@click.option("--checkpoint", metavar="REGEX", help="log: a line that says a checkpoint is saved.")
@click.option("--start", metavar="REGEX", help="log: a line with which an attempt begins.")
@click.option("--dialect", help="log: whose lines these are, where they are not recognised.")
@click.option("--began", metavar="TIME", help="When the job began, if before the first line.")
@click.option("--ended", metavar="TIME", help="When the job ended, if after the last line.")
@click.option("--outcome", type=click.Choice(["success", "failed", "preempted"]))
@click.option(
    "--ranks", default=1, type=click.IntRange(1, 1 << 20), help="Ranks the file stands for."
)
@click.option(
    "--stall",
    default=1.5,
    show_default=True,
    type=click.FloatRange(0),
    help="A step of more than this many usual ones: what is over is no step's; 0 for never.",
)
@speaks_plainly
def import_(file: Path, run: str, form: str, ranks: int, **told: Any) -> None:
    """Make a run of a file: events/1, or what another tool wrote.

    \b
    goodput     log entries of ml-goodput-measurement (JSON lines, or an export)
    torchtitan  a structured log, or the folder structured_logs of a job
    log         a plain log: steps, time stamps, checkpoints, restarts
    csv         a table with a column of times and one of step numbers
    """
    from torchett.record.identity import runs_folder
    from torchett.runs.imported import write_run

    target = Path(run) if os.sep in run else runs_folder(os.environ) / run
    history = _history(file, target.name, form, ranks, told)
    write_run(history, target)
    for note in history.notes:
        click.echo(f"ett: {note}", err=True)
    click.echo(f"ett: {target} made; ett report {run}", err=True)


def _history(file: Path, job: str, form: str, ranks: int, told: dict[str, Any]) -> Any:
    from torchett.runs import events
    from torchett.runs.importers import goodput, log, table, torchtitan
    from torchett.runs.importers.draft import Told
    from torchett.runs.importers.stamps import given_time

    if form == "events":
        return events.read(file)
    said = Told(
        began_s=given_time(told["began"], "--began") if told["began"] else None,
        ended_s=given_time(told["ended"], "--ended") if told["ended"] else None,
        outcome=told["outcome"],
        ranks=ranks,
        stall=told["stall"],
    )
    if form == "torchtitan":
        files = sorted(file.glob("*.jsonl")) if file.is_dir() else [file]
        if not files:
            raise InputError(f"{file}: expected *.jsonl files of torchtitan, found none")
        return torchtitan.parse({str(path): _lines(path) for path in files}, job, said)
    lines, name = _lines(file), str(file)
    if form == "goodput":
        return goodput.parse(lines, name, job, said)
    if form == "csv":
        return table.parse(lines, name, job, said, time=told["time"], step=told["step"])
    how = log.Reading(
        step=told["step"],
        time=told["time"],
        checkpoint=told["checkpoint"],
        start=told["start"],
        dialect=told["dialect"],
    )
    return log.parse(lines, name, job, said, how)


def _lines(path: Path) -> list[str]:
    """The lines of a text file (packed by gzip or not), each with its end.

    Bytes that are not UTF-8 are replaced: a log may hold anything.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: expected a readable file: {error.strerror}") from None
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path}: expected a whole gzip file: {error}") from None
    return list(io.StringIO(data.decode(errors="replace"), newline="\n"))


@click.command()
@click.argument("run")
@click.option("--format", "form", default="events", type=click.Choice(_EXPORTS), show_default=True)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="A file (else stdout), or DIR."
)
@click.option(
    "--follow",
    metavar="SECONDS",
    type=click.FloatRange(0.1),
    help="Go on while the job runs, looking this often (tensorboard, wandb, mlflow).",
)
@speaks_plainly
def export(run: str, form: str, output: Path | None, follow: float | None) -> None:
    """Write a run for other tools.

    \b
    events       the interchange format events/1
    perfetto     Chrome-trace JSON for ui.perfetto.dev, one track per rank
    tensorboard  event files in DIR
    wandb        an offline run in DIR, for `wandb sync`
    mlflow       a run in a store at DIR, for `mlflow ui --backend-store-uri DIR`
    """
    from torchett.runs import events
    from torchett.runs.files import write_whole
    from torchett.runs.folder import find_run
    from torchett.runs.reader import RunReader

    reader = RunReader(find_run(run)).poll()
    if form in ("events", "perfetto"):
        if follow is not None:
            raise InputError(f"--follow: expected tensorboard, wandb or mlflow, found {form}")
        lines: Iterator[str]
        if form == "events":
            lines = (line + "\n" for line in events.write(reader.history()))
        else:
            from torchett.sinks import perfetto

            lines = perfetto.write(reader.ledger(), reader.history())
        if output is not None:
            write_whole(output, lines)
            return
        for line in lines:
            click.echo(line, nl=False)
        return
    if output is None:
        raise InputError(f"--format {form}: expected a folder to write to (-o DIR), found none")
    if output.exists() and not output.is_dir():
        raise InputError(f"{output}: expected a folder, found a file")
    try:
        _feed(form, output, reader, follow)
    except EttError:
        raise
    except Exception as error:  # the other tool's: what it says, on one line
        said = " ".join(str(error).split())[:300]
        raise RunError(f"{output}: {form} did not take it: {said}") from error
    click.echo(f"ett: {output} written", err=True)


def _feed(form: str, folder: Path, reader: "RunReader", follow: float | None) -> None:
    import time

    from torchett.sinks import feed, mlflow, tensorboard, wandb

    makers: dict[str, Callable[[Path, Ledger], feed.Sink]] = {
        "tensorboard": tensorboard.TensorBoard,
        "wandb": wandb.WandB,
        "mlflow": mlflow.MLflow,
    }
    ledger = reader.ledger()
    sink = makers[form](folder, ledger)
    if follow is None:
        feed.write(sink, ledger, reader.history())
    else:
        feed.follow(sink, reader, lambda: time.sleep(follow))
