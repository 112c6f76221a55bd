"""`ett compile doctor` and `ett compile kernels`: why compiles happened, what they cost."""

import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.output import print_json, print_rich, speaks_plainly
from torchett.model.errors import EttError, InputError, RunError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from torchett.levers.compile.doctor.doctor import Diagnosis, Recompile
    from torchett.levers.compile.doctor.learned import Workload
    from torchett.levers.compile.observe.facts import Compile
    from torchett.runs.reader import RunReader


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--apply",
    is_flag=True,
    help="Run a command, mark the sizes that made it recompile, run it again, and compare.",
)
@click.argument("target", nargs=-1, type=click.UNPROCESSED)
@speaks_plainly
def doctor(as_json: bool, apply: bool, target: tuple[str, ...]) -> None:
    """Say what was compiled again, why, what it cost and what cures it.

    ett compile doctor RUN|TRACE_FOLDER · ett compile doctor --apply -- CMD…
    """
    if apply:
        _apply(target, as_json)
        return
    words = [word for word in target if word != "--json"]
    if len(words) != 1:
        raise InputError(
            "ett compile doctor: expected one run or TORCH_TRACE folder, or --apply -- CMD,"
            f" found {' '.join(words) or 'nothing'}"
        )
    as_json = as_json or len(words) < len(target)
    diagnosis, notes = _examined(words[0])
    if as_json:
        print_json(_as_json(diagnosis) | ({"notes": notes} if notes else {}))
    else:
        print_rich(_page(words[0], diagnosis, notes))


def _examined(target: str) -> "tuple[Diagnosis, list[str]]":
    """The diagnosis of a run or a trace, and what could not be read."""
    from torchett.levers.compile.doctor.doctor import diagnose
    from torchett.levers.compile.observe.traces import is_trace, read_trace
    from torchett.runs.folder import find_run
    from torchett.runs.reader import RunReader

    path = Path(target)
    if path.exists() and not list(path.glob("attempt*")) and is_trace(path):
        trace = read_trace(path)
        notes = [f"{trace.damaged} entries could not be read"] if trace.damaged else []
        return diagnose(trace.compiles), notes
    reader = RunReader(find_run(target)).poll()
    return diagnose(compiles_of(reader)), []


def _as_json(diagnosis: "Diagnosis") -> dict[str, Any]:
    from torchett.levers.compile.doctor.sources import render, takes_dimensions

    value = render(diagnosis.sources, by_dimension=takes_dimensions())
    return diagnosis.to_json() | {"dynamic_sources": value}


def _page(title: str, diagnosis: "Diagnosis", notes: list[str]) -> "RenderableType":
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from torchett.levers.compile.doctor.reasons import CAUSES
    from torchett.levers.compile.doctor.sources import DYNAMIC, UNBACKED, render, takes_dimensions

    again = len(diagnosis.recompiles)
    head = Text(f"{title}  ", style="bold")
    head.append(
        f"{diagnosis.graphs} graphs compiled in {diagnosis.ns / 1e9:,.2f} s,"
        f" {again} again: {diagnosis.lost_ns / 1e9:,.2f} s lost"
    )
    parts: list[RenderableType] = [head, Text()]
    for kind, its in diagnosis.by_kind():
        cause = CAUSES[kind]
        lost = sum(one.ns for one in its) / 1e9
        line = Text(f"{lost:9,.2f} s  {len(its):3} ×  ", no_wrap=True)
        line.append(cause.title, style="bold")
        line.append("  cured by dynamic sources" if cause.cured else "  not cured by sources",
                    style="green" if cause.cured else "yellow")  # fmt: skip
        parts.append(line)
        if not cause.cured:
            parts.append(Padding(Text(cause.advice, style="dim"), (0, 0, 0, 19)))
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1))
        alike = _alike(its)
        for (text, place), same in alike[:8]:
            ids = " ".join(dict.fromkeys(one.id for one in same[:4])) + (" …" if same[4:] else "")
            cost = f"{sum(one.ns for one in same) / 1e9:.2f} s"
            table.add_row("   ", ids, cost, f"{len(same)} ×", Text(text), Text(place, style="dim"))
        if len(alike) > 8:
            table.add_row("", f"{len(alike) - 8} more")
        parts += [table, Text()]
    if diagnosis.sources:
        value = render(diagnosis.sources, by_dimension=takes_dimensions())
        parts.append(Text(f"With these sources dynamic, {diagnosis.left} of {diagnosis.graphs}"
                          " graphs would be left:"))  # fmt: skip
        parts.append(Text(f"{DYNAMIC}={_quoted(value)}", overflow="fold", style="bold"))
    elif again:
        parts.append(Text("Dynamic sources would not help here."))
    if diagnosis.unbacked:
        value = render(diagnosis.unbacked, by_dimension=takes_dimensions())
        parts.append(Text("If the code never chooses by these sizes, this may leave fewer;"
                          " `ett compile doctor --apply` tries it:"))  # fmt: skip
        parts.append(Text(f"{UNBACKED}={_quoted(value)}", overflow="fold"))
    parts += [Text(f"note: {note}", style="yellow") for note in notes]
    return Group(*parts)


def _alike(its: "list[Recompile]") -> "list[tuple[tuple[str, str], list[Recompile]]]":
    """Recompiles of one place for one reason together, whatever the objects' addresses."""
    found: dict[tuple[str, str], list[Recompile]] = {}
    for one in its:
        text = re.sub(r"\d{9,}", "…", one.reason.text)
        text += f" ({one.reason.by})" if one.reason.by else ""
        found.setdefault((text, _short_place(one.place)), []).append(one)
    return sorted(found.items(), key=lambda item: -sum(one.ns for one in item[1]))


def _quoted(value: str) -> str:
    """The value for a shell: in double quotes where those do, which reads better."""
    if re.search(r"[\"`!]|\\\\|\\$|\$[^,:]", value):
        return shlex.quote(value)
    return f'"{value}"'


def _short_place(place: str) -> str:
    name, _, rest = place.partition(" (")
    return f"{name} ({'/'.join(rest.split('/')[-2:])}" if rest else place


def _apply(command: tuple[str, ...], as_json: bool) -> None:
    """Run the command as it is, then with what was learned from it; show and keep the best."""
    if not command:
        raise InputError("ett compile doctor --apply: expected a command after --, found none")
    stamp = f"doctor-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    with _output_to_stderr() if as_json else nullcontext():
        sides, best = _tried(command, stamp)
    settings = _settings_of(best)
    if settings:
        _keep(command, best)
    if as_json:
        shown = {name: _as_json(side) for name, side in sides.items()}
        print_json({"sides": shown, "settings": settings})
    else:
        _show_sides(stamp, sides, settings)


def _tried(command: tuple[str, ...], stamp: str) -> "tuple[dict[str, Diagnosis], Workload]":
    """The command's runs by their settings for torch, and the settings for further runs."""
    from torchett.levers.compile.doctor.learned import Workload

    sides = {"as it is": _run_once(command, f"{stamp}-before", Workload())}
    best = Workload()
    before = last = sides["as it is"]
    if before.sources:
        best = Workload(dynamic=before.sources)
        last = sides["dynamic"] = _run_once(command, f"{stamp}-dynamic", best)
    if unbacked := (last if last.unbacked else before if last.recompiles else last).unbacked:
        tried = Workload(dynamic=best.dynamic, unbacked=unbacked)
        try:
            without_hints = _run_once(command, f"{stamp}-unbacked", tried)
            if without_hints.graphs < last.graphs and not without_hints.failed:
                best, last = tried, without_hints
            sides["unbacked"] = without_hints
        except RunError as error:
            print(f"ett: unbacked sources do not work here: {error}", file=sys.stderr)
    return sides, best


@contextmanager
def _output_to_stderr() -> Iterator[None]:
    """What commands print in the body goes to stderr: stdout is for one JSON object."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _show_sides(stamp: str, sides: "dict[str, Diagnosis]", settings: dict[str, str]) -> None:
    from rich.table import Table

    print_rich(_page(f"{stamp}-before", sides["as it is"], []))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("sources", "graphs", "recompiles", "seconds of compiling"):
        table.add_column(heading, justify="left" if heading == "sources" else "right")
    for name, side in sides.items():
        again = str(len(side.recompiles))
        table.add_row(name, str(side.graphs), again, f"{side.ns / 1e9:,.2f}")
    print_rich("")
    print_rich(table)
    for kind, its in list(sides.values())[-1].by_kind():
        click.echo(f"left: {len(its)} × {kind}: {its[0].reason.text}")
    for variable, value in settings.items():
        click.echo(f"kept for `ett run --dynamic-sources auto`: {variable}={_quoted(value)}")
    if not settings:
        click.echo("ett: nothing to apply", err=True)


def _run_once(command: tuple[str, ...], job: str, told: "Workload") -> "Diagnosis":
    """The diagnosis of one run of the command, from caches that are empty."""
    import tempfile

    from torchett.launch.options import Options
    from torchett.launch.run import run_job
    from torchett.levers.compile.doctor.doctor import diagnose
    from torchett.record.levers import default_plugins
    from torchett.runs.reader import RunReader

    with tempfile.TemporaryDirectory(prefix="ett-doctor-") as cache:
        settings = {"TORCHINDUCTOR_CACHE_DIR": cache} | _settings_of(told)
        options = Options(
            command=command,
            job=job,
            progress_s=0,
            plugins=default_plugins(),
            settings=settings,
        )
        ended = run_job(options, os.environ)
    if ended.code:
        raise RunError(f"{ended.run}: the command ended with {ended.code}; nothing was learned")
    return diagnose(compiles_of(RunReader(ended.run).poll()))


def _settings_of(told: "Workload") -> dict[str, str]:
    from torchett.levers.compile.doctor.sources import takes_dimensions

    return told.settings(os.environ, by_dimension=takes_dimensions())


def source_settings(asked: str | None, command: tuple[str, ...]) -> dict[str, str]:
    """The environment that `ett run --dynamic-sources auto|LIST` gives the job."""
    from torchett.levers.compile.doctor.learned import learned
    from torchett.levers.compile.doctor.sources import DYNAMIC, joined

    if asked == "auto":
        return _settings_of(learned(_workload(command)))
    return {DYNAMIC: joined(os.environ.get(DYNAMIC), asked)} if asked else {}


def learn_sources(run: Path, command: tuple[str, ...]) -> None:
    """Keep what a finished job showed about its workload; a failure is one line."""
    from torchett.levers.compile.doctor.doctor import diagnose
    from torchett.levers.compile.doctor.learned import Workload
    from torchett.runs.reader import RunReader

    try:
        found = diagnose(compiles_of(RunReader(run).poll()))
        if found.sources:
            kept = _keep(command, Workload(dynamic=found.sources))
            said = f"ett: {len(found.recompiles)} recompiles; {kept} dynamic sources are kept"
            print(f"{said} for the next job of this workload", file=sys.stderr)
    except (EttError, OSError) as error:
        print(f"ett: dynamic sources were not learned: {error}", file=sys.stderr)


def _keep(command: tuple[str, ...], new: "Workload") -> int:
    from torchett.levers.compile.doctor.learned import learn

    return len(learn(_workload(command), command, new).dynamic)


def _workload(command: tuple[str, ...]) -> Path:
    from torchett.levers.compile.doctor.learned import workload_path
    from torchett.record.identity import runs_folder

    return workload_path(runs_folder(os.environ), command)


@click.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--prune", type=click.IntRange(1), help="Keep the K best configs of each kernel.")
@speaks_plainly
def kernels(run: str, as_json: bool, prune: int | None) -> None:
    """List the kernels that cost most to tune and compile."""
    from torchett.levers.compile.observe.facts import KERNEL, stray_facts
    from torchett.levers.compile.tuning.kernels import kernel_costs
    from torchett.runs.folder import find_run
    from torchett.runs.reader import RunReader

    reader = RunReader(find_run(run)).poll()
    facts = [*reader.facts(KERNEL), *stray_facts(reader.run, KERNEL)]
    costs = kernel_costs(facts)
    pruned = _prune(facts, prune) if prune else {}
    benchmarks = sum(one.benchmarks for one in costs)
    pinned = sum(one.pinned for one in costs)
    if as_json:
        shown: dict[str, Any] = {"benchmarks": benchmarks, "pinned": pinned}
        shown["kernels"] = [one.to_json() for one in costs]
        if prune:
            shown["pruned"] = {name: {"kept": k, "of": n} for name, (k, n) in pruned.items()}
        print_json(shown)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("kernel", "made by", "tuning s", "compiling s", "benchmarks", "pinned", "won"):
        right = heading in ("tuning s", "compiling s", "benchmarks", "pinned")
        table.add_column(heading, justify="right" if right else "left")
    for one in costs[:30]:
        won = next(reversed(one.winners.values()), "")
        table.add_row(one.name, one.origin, f"{one.tuning_s:.3f}", f"{one.compiling_s:.3f}",
                      str(one.benchmarks), str(one.pinned), won)  # fmt: skip
    print_rich(table)
    click.echo(f"{len(costs)} kernels, {benchmarks} benchmarks, {pinned} pinned")
    for name, (k, n) in pruned.items():
        click.echo(f"{name}: {k} of {n} configs kept")


def _prune(facts: "list[tuple[int, int, Any]]", k: int) -> dict[str, tuple[int, int]]:
    """Prune wherever this job's pins are."""
    from torchett.levers.compile.tuning.pins import prune

    folders = {fact["pins"] for _, _, fact in facts if isinstance(fact, dict) and "pins" in fact}
    there = [Path(folder) for folder in sorted(folders) if Path(folder).is_dir()]
    if not there:
        said = ", ".join(sorted(folders)) or "no kernel was tuned"
        raise RunError(f"ett compile kernels --prune: expected pins on this machine: {said}")
    pruned: dict[str, tuple[int, int]] = {}
    for folder in there:
        pruned |= prune(folder, k)
    return pruned


def compiles_of(reader: "RunReader") -> "list[tuple[int, int, Compile]]":
    """Attempt, rank and compile: all that the job's processes wrote down."""
    from torchett.levers.compile.observe.facts import KIND, stray_facts
    from torchett.levers.compile.observe.summary import compiles_in

    return compiles_in([*reader.facts(KIND), *stray_facts(reader.run, KIND)])
