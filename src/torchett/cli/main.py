"""The command `ett`: parse, call, print. Bad input is one line and exit code 2."""

import os
import sys
import time
from pathlib import Path

import click

from torchett import __version__
from torchett.cli.bench import bench
from torchett.cli.checkpoint import checkpoint
from torchett.cli.compile import compile_, say_if_unusable
from torchett.cli.exchange import export, import_
from torchett.cli.speak import print_json, print_rich, speaks_plainly
from torchett.cli.startup import startup
from torchett.model.errors import EttError, InputError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ett")
def main() -> None:
    """Effective training time: every second of every rank in exactly one account."""


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--job", help="Name of the job; one that exists goes on with its next attempt.")
@click.option("--max-restarts", default=0, show_default=True, type=click.IntRange(0))
@click.option("--as-is", is_flag=True, help="Wrap the command untouched.")
@click.option(
    "--standby/--no-standby",
    default=True,
    show_default=True,
    help="Hand torchrun's ranks to processes that have imported torch already.",
)
@click.option(
    "--standby-device",
    is_flag=True,
    help="Let standbys hold a context on their rank's device: faster, for some of its memory.",
)
@click.option(
    "--standby-model",
    is_flag=True,
    help="Let standbys import what defines the model and have it compiled ahead.",
)
@click.option(
    "--preload",
    metavar="MODULES",
    default="",
    help="What the script imports beside torch, for standbys to import ahead (comma between).",
)
@click.option(
    "--hang-timeout",
    default=8.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds without any sign of life after which a rank is ended; 0 for never.",
)
@click.option(
    "--progress",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds between lines; 0 for none.",
)
@click.option("--compile-cache", help="Path or URL of a library of compiled code to use and fill.")
@click.option(
    "--hooks/--no-hooks",
    default=None,
    help="Recognise steps, waits, saves and so on in scripts that do not record them"
    " (default: yes, unless --as-is).",
)
@click.option(
    "--bytecode/--no-bytecode",
    default=True,
    show_default=True,
    help="Keep the bytecode of what jobs import: in one file, and for a torch that has none.",
)
@click.option(
    "--light-batches/--no-light-batches",
    default=True,
    show_default=True,
    help="Let small tensors of batches travel in the loader's pipe, not in shared memory.",
)
@click.option(
    "--warm-up",
    is_flag=True,
    help="After a restart, compile while the loader fetches its first batch.",
)
@click.option("--audit", is_flag=True, help="Write down what communication costs the start-up.")
@click.option(
    "--pins/--no-pins",
    default=True,
    show_default=True,
    help="Use what won when kernels were tuned before; see `ett compile kernels`.",
)
@click.option(
    "--dynamic-sources",
    metavar="auto|LIST",
    help="What torch.compile takes for dynamic; auto: what earlier jobs of this script taught.",
)
@click.option("--node", type=click.IntRange(0), help="This node's number, 0 is the head.")
@click.option("--nodes", type=click.IntRange(1), help="How many nodes run this job.")
@click.option("--head", help="HOST[:PORT] of node 0, to compare clocks with.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@speaks_plainly
def run(
    job: str | None,
    max_restarts: int,
    as_is: bool,
    standby: bool,
    standby_device: bool,
    standby_model: bool,
    preload: str,
    hang_timeout: float,
    progress: float,
    compile_cache: str | None,
    hooks: bool | None,
    bytecode: bool,
    light_batches: bool,
    warm_up: bool,
    audit: bool,
    pins: bool,
    dynamic_sources: str | None,
    node: int | None,
    nodes: int | None,
    head: str | None,
    command: tuple[str, ...],
) -> None:
    """Run a training command and record its attempts: ett run -- torchrun … train.py"""
    from torchett.cli.doctor import learn_sources, source_settings
    from torchett.launch.levers import Levers
    from torchett.launch.run import Options, run_job
    from torchett.launch.supervise import leave_like

    levers = Levers(
        hooks=not as_is if hooks is None else hooks,
        compile_cache=compile_cache,
        pins=pins and not as_is,
        audit=audit,
        bytecode=bytecode and not as_is,
        light_batches=light_batches and not as_is,
        warm_up=warm_up,
        meeting=standby and not as_is,
        standby_model=standby and standby_model and not as_is,
    )
    asked = {"--dynamic-sources": dynamic_sources is not None, "--warm-up": warm_up}
    for option in (name for name, wanted in asked.items() if wanted):
        if as_is:
            raise InputError(f"ett run: {option} changes the command, --as-is does not: drop one")
    if compile_cache is not None:
        say_if_unusable(compile_cache)
    _say_if_unknown(preload)
    options = Options(
        command=command,
        job=job,
        max_restarts=max_restarts,
        as_is=as_is,
        standby=standby,
        standby_device=standby_device,
        preload=preload,
        hang_timeout_s=hang_timeout,
        progress_s=progress,
        node=node,
        nodes=nodes,
        head=head,
        aboard=levers.aboard,
        settings=levers.settings | source_settings(dynamic_sources, command),
    )
    ended = run_job(options, os.environ)
    if dynamic_sources == "auto" and ended.node == 0:
        learn_sources(ended.run, command)
    if ended.node == 0:
        _print_summary(ended.run)
    if sys.stdout is not None:  # closed: `ett run … >&-`
        sys.stdout.flush()
    raise SystemExit(leave_like(ended.code))


def _say_if_unknown(preload: str) -> None:
    """Say which modules standbys will not find, neither where Python looks nor in this folder."""
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    for name in filter(None, preload.split(",")):
        package = name.partition(".")[0]
        if not (package and (PathFinder.find_spec(package, [os.getcwd()]) or find_spec(package))):
            click.echo(f"ett: --preload: standbys do without {name}: no such module", err=True)


def _print_summary(folder: Path) -> None:
    from torchett.launch.progress import line
    from torchett.record.identity import runs_folder
    from torchett.runs.reader import RunReader

    try:
        said = line(RunReader(folder).poll().ledger())
    except EttError as error:
        said = str(error)
    known = folder.parent == runs_folder(os.environ).absolute()
    click.echo(f"ett: {said} · ett report {folder.name if known else folder}", err=True)


@main.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--definition",
    default="meta",
    show_default=True,
    type=click.Choice(["meta", "goodput", "megascale", "ettr"]),
    help="Whose definition the headline follows.",
)
@click.option("--svg", type=click.Path(path_type=Path), help="Write it as a picture to this file.")
@speaks_plainly
def report(run: str, as_json: bool, definition: str, svg: Path | None) -> None:
    """Show where the time of a job went."""
    from torchett.cli.doctor import compiles_of
    from torchett.compile.summary import summary
    from torchett.compile.told import cache_lines, standby_lines
    from torchett.ledger.views import DEFINITIONS
    from torchett.runs.folder import find_run
    from torchett.runs.reader import RunReader

    reader = RunReader(find_run(run)).poll()
    ledger, chosen = reader.ledger(), DEFINITIONS[definition]
    compiles = summary(compiles_of(reader))
    reader.asides += cache_lines(reader.facts("compile_cache"))
    reader.asides += standby_lines(reader.facts("standby_model"))
    if as_json:
        shown = ledger.to_json()
        if compiles is not None:
            shown["compile"] = compiles
        if reader.notes:
            shown["notes"] = reader.notes
        if reader.asides:
            shown["asides"] = reader.asides
        if definition != "meta":
            value = chosen.percent(ledger, reader.history().rows)
            shown["definition"] = {"name": definition, "percent": value, "is": chosen.sentence}
        print_json(shown)
        return
    from torchett.report.compiles import compile_section
    from torchett.report.job import job_report

    history = reader.history()
    now_ns = int((time.time() - history.epoch_s) * 1e9) if reader.beats else None
    details = compile_section(compiles)
    drawn = job_report(ledger, history, chosen, details=details, now_ns=now_ns)
    if svg is None:
        print_rich(drawn)
        return
    from torchett.report.picture import as_svg
    from torchett.runs.files import write_whole

    write_whole(svg, [as_svg(drawn, f"ett report {ledger.job}")])


@main.command()
@click.argument("a")
@click.argument("b")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@speaks_plainly
def compare(a: str, b: str, as_json: bool) -> None:
    """Show which accounts moved between two jobs, and by how much."""
    from torchett.report.comparison import comparison, comparison_json, told_apart
    from torchett.runs.folder import find_run
    from torchett.runs.reader import RunReader

    runs = find_run(a), find_run(b)
    ours, theirs = (RunReader(run).poll().ledger() for run in runs)
    if as_json:
        print_json(comparison_json(ours, theirs))
    else:
        print_rich(comparison(*told_apart(ours, theirs, runs)))


for command in (import_, export, startup, compile_, checkpoint, bench):
    main.add_command(command)


if __name__ == "__main__":
    main()
