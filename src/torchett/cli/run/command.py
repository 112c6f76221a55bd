"""`ett run`: run a training command and record its attempts."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.compile.group import say_if_unusable
from torchett.cli.output import speaks_plainly
from torchett.model.errors import EttError, InputError

if TYPE_CHECKING:
    from torchett.launch.options import Options
    from torchett.launch.settings.levers import Levers


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--job",
    metavar="NAME",
    help="Name of the job. One that failed or was stopped goes on with its next attempt; after one"
    " that ended well a new run begins, NAME-2.",
)
@click.option("--resume", is_flag=True, help="Continue --job NAME even if it ended with success.")
@click.option(
    "--max-restarts",
    default=0,
    show_default=True,
    metavar="N",
    type=click.IntRange(0),
    help="Start a command that fails again, up to N times. A torchrun that has no --max-restarts"
    " of its own is given this one: its agent restarts the ranks, which is faster.",
)
@click.option(
    "--restart-policy",
    metavar="FILE",
    multiple=True,
    help="TOML with your own rows: which failures restart, wait or stop. They are tried before the"
    " rows of torchett. none: restart after every failure, --max-restarts times.",
)
@click.option(
    "--as-is", is_flag=True, help="Run the command unchanged: only record when it starts and ends."
)
@click.option(
    "--standby/--no-standby",
    default=True,
    show_default=True,
    help="Start torchrun's ranks in waiting processes that have already imported torch.",
)
@click.option(
    "--standby-device",
    is_flag=True,
    help="Standbys open a context on their rank's device: faster, but uses device memory.",
)
@click.option(
    "--standby-model",
    is_flag=True,
    help="Standbys also import the module that defines the model and compile it ahead.",
)
@click.option(
    "--preload",
    metavar="MODULES",
    default="",
    help="Further modules for standbys to import ahead, separated by commas.",
)
@click.option(
    "--hang-timeout",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0),
    help="End a rank that has sent no beat and used no CPU for this many seconds; 0: never. A rank"
    " that is stopped (SIGSTOP), or silent after a peer has exited, is ended after 8 at most.",
)
@click.option(
    "--progress",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds between two progress lines; 0 for none.",
)
@click.option(
    "--compile-cache", help="Path or URL of a library of compiled code: use it, and add to it."
)
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
    help="Keep the bytecode of imported modules in a folder of the user, if torch is installed"
    " without bytecode.",
)
@click.option(
    "--light-batches",
    is_flag=True,
    help="Send small tensors of batches through the loader's pipe, not shared memory.",
)
@click.option(
    "--audit",
    is_flag=True,
    help="Record what communication costs at start-up; see `ett startup audit`.",
)
@click.option(
    "--pins/--no-pins",
    default=True,
    show_default=True,
    help="Reuse the best kernel configurations of earlier runs; see `ett compile kernels`.",
)
@click.option(
    "--dynamic-sources",
    metavar="auto|LIST",
    help="Sources that torch.compile treats as dynamic; auto: those that earlier jobs found.",
)
@click.option(
    "--without",
    metavar="NAME",
    multiple=True,
    help="Turn off this lever, or leave this target unchanged; may be repeated. See --explain.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Print what torchett would change in the job's processes, and why; run nothing.",
)
@click.option("--json", "as_json", is_flag=True, help="With --explain: print one JSON object.")
@click.option(
    "--label",
    multiple=True,
    metavar="KEY=VALUE",
    help="Label for the fleet, such as team=ads; added to the scheduler's and to ETT_LABELS.",
)
@click.option(
    "--ship", metavar="URL", help="Send records to this `ett serve` (default: $ETT_SHIP)."
)
@click.option("--node", type=click.IntRange(0), help="Number of this node; 0 is the head.")
@click.option("--nodes", type=click.IntRange(1), help="Number of nodes of this job.")
@click.option(
    "--spares",
    default=0,
    metavar="N",
    type=click.IntRange(0),
    help="Number of nodes in addition to --nodes (and torchrun's --nnodes). They wait with warm"
    " processes, and replace a node that is lost.",
)
@click.option("--head", help="HOST[:PORT] of node 0; clocks are compared with it.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@speaks_plainly
def run(command: tuple[str, ...], explain: bool, as_json: bool, **given: Any) -> None:
    """Run a training command and record its attempts.

    Example: ett run -- torchrun --nproc-per-node 8 train.py
    """
    from torchett.launch.run import run_job
    from torchett.launch.supervise import leave_like

    asked = _without_levers_left_off(given)
    if explain:
        _explain(asked, as_json)
        return
    if as_json:
        raise InputError("ett run: --json goes with --explain")
    if asked["compile_cache"] is not None:
        say_if_unusable(asked["compile_cache"])
    _say_if_unknown(asked["preload"])
    ended = run_job(_job_options(command, asked), os.environ)
    if asked["dynamic_sources"] == "auto" and ended.node == 0:
        from torchett.cli.compile.doctor import learn_sources

        learn_sources(ended.run, command)
    if ended.node == 0:
        _print_summary(ended.run)
    if sys.stdout is not None:  # closed: `ett run … >&-`
        sys.stdout.flush()
    raise SystemExit(leave_like(ended.code))


def _without_levers_left_off(given: dict[str, Any]) -> dict[str, Any]:
    """The options as --without and --as-is leave them; InputError where two contradict."""
    from torchett.launch.settings.switches import checked

    off = checked(given["without"])
    asked = {**given, "without": off}
    if "restart-policy" in off:
        asked["restart_policy"] = ("none",)
    if "standby" in off:
        asked["standby"] = False
    if "hang-timeout" in off:
        asked["hang_timeout"] = 0.0
    if "dynamic-sources" in off:
        asked["dynamic_sources"] = None
    changes = {"dynamic-sources": asked["dynamic_sources"], "light-batches": given["light_batches"]}
    for option in (name for name, wanted in changes.items() if wanted not in (None, False)):
        if given["as_is"]:
            raise InputError(f"ett run: --{option} changes the command, --as-is does not: drop one")
    return asked


def _levers(asked: dict[str, Any]) -> "Levers":
    from torchett.launch.settings.levers import Levers

    changes = not asked["as_is"]
    return Levers(
        hooks=changes if asked["hooks"] is None else asked["hooks"],
        compile_cache=asked["compile_cache"],
        pins=asked["pins"] and changes,
        audit=asked["audit"],
        bytecode=asked["bytecode"] and changes and "bytecode" not in asked["without"],
        light_batches=asked["light_batches"],
        standby_model=asked["standby"] and asked["standby_model"] and changes,
        without=asked["without"],
    )


def _explain(asked: dict[str, Any], as_json: bool) -> None:
    from torchett.cli.run.explain import show_levers
    from torchett.launch.settings.switches import explained

    rows = explained(
        _levers(asked),
        standby=asked["standby"] and not asked["as_is"],
        hang_timeout_s=asked["hang_timeout"],
        dynamic_sources=asked["dynamic_sources"] is not None,
        agent=not asked["as_is"],
    )
    show_levers(rows, as_json=as_json)


def _names_of(levers: "Levers", asked: dict[str, Any]) -> tuple[str, ...]:
    """The names of the levers that are on, for the record."""
    return (
        *levers.on,
        *(["standby"] if asked["standby"] and not asked["as_is"] else ()),
        *(["dynamic-sources"] if asked["dynamic_sources"] is not None else ()),
    )


def _job_options(command: tuple[str, ...], asked: dict[str, Any]) -> "Options":
    from torchett.cli.compile.doctor import source_settings
    from torchett.cli.run.restarts import policy_of
    from torchett.launch.labels import parsed_labels
    from torchett.launch.options import Options

    levers = _levers(asked)
    same = ("job", "resume", "max_restarts", "as_is", "standby", "standby_device", "preload")
    return Options(
        command=command,
        hang_timeout_s=asked["hang_timeout"],
        progress_s=asked["progress"],
        plugins=levers.plugins,
        labels=parsed_labels(asked["label"], "--label"),
        settings=levers.settings | source_settings(asked["dynamic_sources"], command),
        policy=policy_of(asked["restart_policy"]),
        levers=_names_of(levers, asked),
        **{name: asked[name] for name in (*same, "ship", "node", "nodes", "spares", "head")},
    )


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
