"""`ett import` and `ett export`: runs from other tools' files, and runs for other tools."""

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.output import json_option, print_result, speaks_plainly
from torchett.model.errors import EttError, InputError, RunError

if TYPE_CHECKING:
    from torchett.ledger.history import History
    from torchett.ledger.ledger import Ledger
    from torchett.runs.reader import RunReader
    from torchett.sinks.feed import Sink

_IMPORTS = ["events", "goodput", "torchtitan", "log", "csv", "otlp"]
STALL = 1.5
_FILES = ["events", "perfetto", "perfetto-protobuf", "prometheus"]
_EXPORTS = [*_FILES, "otlp", "tensorboard", "wandb", "mlflow"]


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("run")
@click.option(
    "--format",
    "form",
    default="events",
    type=click.Choice(_IMPORTS),
    show_default=True,
    help="What wrote the file.",
)
@click.option(
    "--step",
    metavar="REGEX",
    help="log: matches the line of a step; its group is the number. csv: the column.",
)
@click.option("--time", metavar="TIME", help="log: a regex or a strptime format. csv: the column.")
@click.option(
    "--checkpoint",
    metavar="REGEX",
    help="log: matches the line that says that a checkpoint is saved.",
)
@click.option(
    "--start", metavar="REGEX", help="log: matches the line with which an attempt begins."
)
@click.option("--dialect", help="log: which program wrote it, if it is not recognised.")
@click.option(
    "--began", metavar="TIME", help="When the job began, if that is before the first line."
)
@click.option("--ended", metavar="TIME", help="When the job ended, if that is after the last line.")
@click.option(
    "--outcome",
    type=click.Choice(["success", "failed", "preempted"]),
    help="How the job ended, if the file does not say so.",
)
@click.option(
    "--ranks",
    default=1,
    type=click.IntRange(1, 1 << 20),
    help="Number of ranks that the file stands for.",
)
@click.option(
    "--stall",
    default=STALL,
    show_default=True,
    type=click.FloatRange(0),
    help="Longest step, in multiples of the median step: time beyond it is not counted as the"
    " step. 0: no limit.",
)
@json_option
@speaks_plainly
def import_(file: Path, run: str, form: str, ranks: int, as_json: bool, **hints: Any) -> None:
    """Make a run of a file: events/1, or what another tool wrote.

    \b
    goodput     log entries of ml-goodput-measurement (JSON lines, or an export)
    torchtitan  a structured log, or the folder structured_logs of a job
    log         a plain log: steps, time stamps, checkpoints, restarts
    csv         a table with a column of times and one of step numbers
    otlp        OpenTelemetry traces: ExportTraceServiceRequests, as a collector was sent them
    """
    from torchett.record.identity import runs_folder, safe_name
    from torchett.runs.imported import write_run

    target = Path(run) if os.sep in run else runs_folder(os.environ) / safe_name(run)
    history = history_of(file, target.name, form, hints | {"ranks": ranks})
    write_run(history, target)
    if not as_json:
        for note in history.notes:
            click.echo(f"ett: {note}", err=True)
    made = {"run": target.name, "path": str(target), "notes": list(history.notes)}
    print_result(made, f"{target} made; ett report {run}", as_json)


def history_of(file: Path, job: str, form: str, hints: Mapping[str, Any]) -> "History":
    """What another tool's file tells of a job; hints are those of `ett import`, by name."""
    from torchett.runs import events
    from torchett.runs.importers import goodput, log, otlp, table, torchtitan
    from torchett.runs.importers.builder import UserHints
    from torchett.runs.importers.stamps import given_time

    if form == "events":
        return events.read(file)
    if form == "otlp":
        return otlp.parse(_bytes(file), str(file), job)
    said = UserHints(
        began_s=given_time(hints["began"], "--began") if hints.get("began") else None,
        ended_s=given_time(hints["ended"], "--ended") if hints.get("ended") else None,
        outcome=hints.get("outcome"),
        ranks=hints.get("ranks", 1),
        stall=hints.get("stall", STALL),
    )
    if form == "torchtitan":
        files = sorted(file.glob("*.jsonl")) if file.is_dir() else [file]
        if not files:
            raise InputError(f"{file}: expected *.jsonl files of torchtitan, found none")
        return torchtitan.parse({str(path): lines_of(path) for path in files}, job, said)
    lines, name = lines_of(file), str(file)
    if form == "goodput":
        return goodput.parse(lines, name, job, said)
    if form == "csv":
        return table.parse(lines, name, job, said, time=hints.get("time"), step=hints.get("step"))
    how = log.Reading(
        step=hints.get("step"),
        time=hints.get("time"),
        checkpoint=hints.get("checkpoint"),
        start=hints.get("start"),
        dialect=hints.get("dialect"),
    )
    return log.parse(lines, name, job, said, how)


def lines_of(path: Path) -> list[str]:
    """The lines of a text file (packed by gzip or not), each with its end.

    Bytes that are not UTF-8 are replaced: a log may hold anything.
    """
    data = _bytes(path)
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path}: expected a whole gzip file: {error}") from None
    return list(io.StringIO(data.decode(errors="replace"), newline="\n"))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: expected a readable file: {error.strerror}") from None


@click.command()
@click.argument("run")
@click.option(
    "--format",
    "form",
    default="events",
    type=click.Choice(_EXPORTS),
    show_default=True,
    help="What to write.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="File (default: stdout), or DIR."
)
@click.option(
    "--follow",
    metavar="SECONDS",
    type=click.FloatRange(0.1),
    help="Continue while the job runs, and look this often (tensorboard, wandb, mlflow).",
)
@click.option(
    "--own",
    is_flag=True,
    help="Write into the run that your script writes, and find it (tensorboard, wandb, mlflow).",
)
@json_option
@speaks_plainly
def export(
    run: str, form: str, output: Path | None, follow: float | None, own: bool, as_json: bool
) -> None:
    """Write a run for other tools.

    \b
    events       the interchange format events/1
    perfetto     Chrome-trace JSON for ui.perfetto.dev, one track per rank
    perfetto-protobuf   the same in Perfetto's own format, for jobs of many ranks
    prometheus   metrics, for a node-exporter's textfile collector
    otlp         metrics and attempts, to an OpenTelemetry endpoint (-o URL)
    tensorboard  event files in DIR
    wandb        an offline run in DIR, for `wandb sync`
    mlflow       a run in a store at DIR, for `mlflow ui --backend-store-uri DIR`
    """
    from torchett.runs.folder import find_run
    from torchett.runs.reader import RunReader

    reader = RunReader(find_run(run)).poll()
    if form in (*_FILES, "otlp"):
        if follow is not None or own:
            said = "--own" if own else "--follow"
            raise InputError(f"{said}: expected tensorboard, wandb or mlflow, found {form}")
        if as_json and output is None:
            raise InputError(f"--json: expected a file to write {form} to (-o FILE), found none")
        _write_file(form, output, reader)
        if output is not None:
            _say_written(reader, form, str(output), as_json)
        return
    if own and output is not None:
        raise InputError("--own finds where to write by itself: drop -o")
    if output is None and not own:
        raise InputError(f"--format {form}: expected a folder to write to (-o DIR), found none")
    if output is not None and output.exists() and not output.is_dir():
        raise InputError(f"{output}: expected a folder, found a file")
    try:
        _feed(form, output, reader, follow)
    except EttError:
        raise
    except Exception as error:  # the other tool's: what it says, on one line
        said = " ".join(str(error).split())[:300]
        where = output or "your own run"
        raise RunError(f"{where}: {form} did not take it: {said}") from error
    _say_written(reader, form, None if output is None else str(output), as_json)


def _say_written(reader: "RunReader", form: str, output: str | None, as_json: bool) -> None:
    """`output` is None where it went into the run that the user's script writes."""
    if output is not None and form == "otlp":
        output = output.replace(":/", "://", 1)  # a Path joins the two slashes of a URL
    written = {"run": reader.job.name, "format": form, "output": output}
    print_result(written, f"{output or 'your own run'} written", as_json)


def _write_file(form: str, output: Path | None, reader: "RunReader") -> None:
    from torchett.runs import events
    from torchett.runs.output_files import expect_writable, write_bytes
    from torchett.sinks import metrics, otlp, perfetto, perfetto_protobuf

    ledger, history = reader.ledger(), reader.history()
    if form == "otlp":
        if output is None:
            raise InputError("--format otlp: expected an endpoint (-o http://HOST:4318)")
        otlp.send(str(output).replace(":/", "://", 1), ledger, history)
        return
    if form == "perfetto-protobuf" and output is None:
        raise InputError("--format perfetto-protobuf: expected a file (-o FILE), found none")
    if output is not None:
        expect_writable(output)
    parts: Iterator[bytes]
    if form == "events":
        parts = (f"{line}\n".encode() for line in events.write(history))
    elif form == "perfetto":
        parts = (line.encode() for line in perfetto.write(ledger, history))
    elif form == "prometheus":
        parts = iter([metrics.text(metrics.job_metrics({ledger.job: ledger}))])
    else:
        parts = perfetto_protobuf.write(ledger, history)
    if output is not None:
        write_bytes(output, parts)
        return
    for part in parts:
        click.echo(part, nl=False)


def _feed(form: str, folder: Path | None, reader: "RunReader", follow: float | None) -> None:
    import time

    from torchett.sinks import feed

    ledger = reader.ledger()
    sink = _own_sink(form, ledger) if folder is None else _new_sink(form, folder, ledger)
    if follow is None:
        feed.write(sink, ledger, reader.history())
    else:
        feed.follow(sink, reader, lambda: time.sleep(follow))


def _new_sink(form: str, folder: Path, ledger: "Ledger") -> "Sink":
    from torchett.sinks import mlflow, tensorboard, wandb

    makers: dict[str, Callable[[Path, Ledger], Sink]] = {
        "tensorboard": tensorboard.TensorBoard,
        "wandb": wandb.WandB,
        "mlflow": mlflow.MLflow,
    }
    return makers[form](folder, ledger)


def _own_sink(form: str, ledger: "Ledger") -> "Sink":
    from torchett.sinks import own_runs, tensorboard

    here = Path.cwd()
    if form == "mlflow":
        return own_runs.OwnMLflow(own_runs.find_mlflow(os.environ, here))
    if form == "wandb":
        return own_runs.OwnWandB(own_runs.find_wandb(os.environ, here))
    return tensorboard.TensorBoard(own_runs.find_tensorboard(here), ledger)
