"""`ett fleet rollup`, `watch`, `import` and `retention`: what a fleet takes in and lets go."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.fleet.opened import fleet_option, json_option, open_fleet
from torchett.cli.output import print_json, speaks_plainly
from torchett.launch.labels import parsed_labels
from torchett.model.errors import InputError, RunError

if TYPE_CHECKING:
    from torchett.fleet import Fleet
    from torchett.fleet.intake.rollup import RolledUp

_PROJECT = click.option(
    "--project", default="default", show_default=True, help="The project that the jobs belong to."
)
_LABEL = click.option(
    "--label", multiple=True, metavar="KEY=VALUE", help="A label for all of them."
)


@click.command()
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="RUN…")
@_PROJECT
@_LABEL
@click.option("--all", "again", is_flag=True, help="Read again what has not changed, too.")
@click.option(
    "--engine",
    default="local",
    show_default=True,
    type=click.Choice(["local", "ray"]),
    help="local: processes here; ray: tasks on Ray ($RAY_ADDRESS, else a cluster here).",
)
@click.option(
    "--workers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 4096),
    help="How many processes.",
)
@json_option
@fleet_option
@speaks_plainly
def rollup(
    runs: tuple[Path, ...],
    project: str,
    label: tuple[str, ...],
    again: bool,
    engine: str,
    workers: int,
    as_json: bool,
    folder: Path | None,
) -> None:
    """Add run folders to the fleet, or read them again.

    Give a RUN, or a folder of runs.

    Without RUN and with --all: every job of the fleet. This is needed after a change of the rules.
    """
    if not runs and not again:
        raise InputError("ett fleet rollup: expected a RUN or a folder of runs, or --all")
    labels = parsed_labels(label, "--label")
    with open_fleet(folder, make=True) as opened:
        from torchett.fleet.intake.rollup import known_sources, roll_up, sources_of

        sources = sources_of(_found(runs), project, labels) if runs else known_sources(opened)
        done = roll_up(opened, sources, engine=engine, workers=workers, again=again)
        _say(done, opened, as_json)


def _found(runs: tuple[Path, ...]) -> Iterator[Path]:
    """Each run that is named, and each run below a folder that is none."""
    from torchett.runs.folder import find_run, is_run
    from torchett.runs.summary import run_folders

    for run in runs:
        if run.is_dir() and not is_run(run):
            yield from run_folders(run)
        else:
            yield find_run(str(run))


def _say(done: "RolledUp", opened: "Fleet", as_json: bool) -> None:
    for error in done.errors:
        click.echo(f"ett: left out: {error}", err=True)
    if as_json:
        counts = {"jobs": done.jobs, "unchanged": done.unchanged, "errors": done.errors}
        print_json({"fleet": str(opened.folder), **counts})
        return
    same = f", {done.unchanged:,} unchanged" if done.unchanged else ""
    click.echo(f"ett: rolled up {done.jobs:,} jobs{same} into {opened.folder}", err=True)


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path), metavar="FOLDER…")
@_PROJECT
@_LABEL
@click.option(
    "--every",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0.05),
    help="Seconds between looks at a live job.",
)
@click.option("--for", "for_s", type=click.FloatRange(0), help="Seconds after which to end.")
@fleet_option
@speaks_plainly
def watch(
    folders: tuple[Path, ...],
    project: str,
    label: tuple[str, ...],
    every: float,
    for_s: float | None,
    folder: Path | None,
) -> None:
    """Keep the fleet up to date with folders of runs.

    Live runs are up to date within seconds.
    """
    for one in folders:
        if not one.is_dir():
            raise InputError(f"{one}: expected a folder of runs, found none")
    with open_fleet(folder, make=True) as opened:
        from torchett.fleet.intake.watch import FleetWatch, WatchedFolder

        labels = tuple(sorted(parsed_labels(label, "--label").items()))
        watched = [
            WatchedFolder(path=one.absolute(), project=project, labels=labels) for one in folders
        ]
        watcher = FleetWatch(opened, watched, every_s=every)
        click.echo(f"ett: watching {len(watched)} folders for {opened.folder}", err=True)
        end = None if for_s is None else time.monotonic() + for_s
        said: set[str] = set()
        try:
            while end is None or time.monotonic() < end:
                began = time.monotonic()
                watcher.look()
                for error in set(watcher.errors.values()) - said:
                    said.add(error)
                    click.echo(f"ett: left out: {error}", err=True)
                # At most a fifth of a core, however many jobs there are.
                pause = max(every / 2, 4 * (time.monotonic() - began))
                time.sleep(pause if end is None else max(min(pause, end - time.monotonic()), 0))
        except KeyboardInterrupt:
            pass


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE…")
@click.option(
    "--format",
    "form",
    required=True,
    type=click.Choice(["events", "goodput", "torchtitan", "log", "sacct"]),
    help="What wrote the files.",
)
@_PROJECT
@_LABEL
@click.option("--step", metavar="REGEX", help="log: a step's line, its number in a group.")
@click.option("--ranks", default=1, type=click.IntRange(1, 1 << 20), help="Ranks of each file.")
@json_option
@fleet_option
@speaks_plainly
def import_(
    files: tuple[Path, ...],
    form: str,
    project: str,
    label: tuple[str, ...],
    step: str | None,
    ranks: int,
    as_json: bool,
    folder: Path | None,
) -> None:
    """Add jobs that other tools recorded.

    Give a FILE for each job, or a folder with one file for each.


    \b
    events, goodput, torchtitan, log   as `ett import`; each becomes a run of the fleet
    sacct                              all jobs of `sacct -aPD`; held-but-idle GPUs are an account
    """
    from torchett.fleet.intake.rollup import RolledUp

    labels = parsed_labels(label, "--label")
    with open_fleet(folder, make=True) as opened:
        done = RolledUp()
        for file in _files(files, form):
            try:
                if form == "sacct":
                    done.jobs += _import_sacct(opened, file, project)
                else:
                    hints = {"step": step, "ranks": ranks}
                    done.jobs += _import_run(opened, file, form, project, labels, hints)
            except (InputError, RunError) as error:
                done.errors.append(str(error))
        _say(done, opened, as_json)
    if done.errors and not done.jobs:
        raise SystemExit(2)


def _files(given: tuple[Path, ...], form: str) -> Iterator[Path]:
    """The files that are named, and those of folders; torchtitan's jobs are folders themselves."""
    for path in given:
        if not path.is_dir():
            yield path
        elif form == "torchtitan":
            inside = sorted(one for one in path.iterdir() if one.is_dir())
            logs = [one for one in inside if any(one.rglob("*.jsonl"))]
            yield from [path] if any(path.glob("*.jsonl")) or not logs else logs
        else:
            yield from sorted(one for one in path.iterdir() if one.is_file())


def _import_sacct(opened: "Fleet", file: Path, project: str) -> int:
    from torchett.cli.exchange import lines_of

    return take_sacct(opened, lines_of(file), str(file), project)


def take_sacct(opened: "Fleet", lines: list[str], name: str, project: str) -> int:
    """Put the jobs in sacct's lines into the fleet, but for those that recorded themselves."""
    from torchett.fleet.intake import sacct

    rows = list(sacct.parse(lines, name, project, time.time()))
    recorded = opened.recorded_slurm_jobs()
    rows = [one for one in rows if one.job["job"].removeprefix("slurm-") not in recorded]
    opened.put(rows)
    return len(rows)


def _import_run(
    opened: "Fleet",
    file: Path,
    form: str,
    project: str,
    labels: dict[str, str],
    hints: dict[str, Any],
) -> int:
    import shutil
    from dataclasses import replace

    from torchett.cli.exchange import history_of
    from torchett.fleet.intake.rollup import roll_up, sources_of
    from torchett.record.identity import safe_name
    from torchett.runs.imported import write_run

    if file.is_dir() and any(file.glob("structured_logs/*.jsonl")):
        name, file = file.name, file / "structured_logs"
    else:
        name = file.name.split(".")[0]
    target = opened.run_folder(safe_name(project), safe_name(name))
    history = history_of(file, target.name, form, hints)
    if os.path.exists(target):
        known = opened.state.one("SELECT source FROM jobs WHERE path = ?", str(target))
        if known is not None and known["source"] != "imported":
            raise RunError(f"{file}: {project} has a job {target.name} that recorded itself")
        shutil.rmtree(target)
    write_run(history, target)
    sources = [
        replace(one, source="imported", shipped=True)
        for one in sources_of([target], project, labels)
    ]
    done = roll_up(opened, sources, again=True)
    if done.errors:
        raise RunError(done.errors[0])
    return done.jobs


@click.command()
@click.option(
    "--runs",
    "runs_days",
    type=click.FloatRange(0),
    metavar="DAYS",
    help="Remove shipped and imported run folders of jobs that ended this many days ago.",
)
@click.option(
    "--rows",
    "rows_days",
    type=click.FloatRange(0),
    metavar="DAYS",
    help="Remove rows of jobs that ended this many days ago.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@json_option
@fleet_option
@speaks_plainly
def retention(
    runs_days: float | None,
    rows_days: float | None,
    dry_run: bool,
    as_json: bool,
    folder: Path | None,
) -> None:
    """Remove old rows and run folders, and join small files.

    Run folders outside of the fleet are never removed.
    """
    from dataclasses import asdict

    with open_fleet(folder) as opened:
        from torchett.fleet.storage.upkeep import compact, retain
        from torchett.fleet.windows import now_utc

        found = retain(opened, now_utc(), runs_days=runs_days, rows_days=rows_days, dry_run=dry_run)
        if not dry_run:
            compact(opened, most=1)
    if as_json:
        print_json(asdict(found) | {"dry_run": dry_run})
        return
    would = "would remove" if dry_run else "removed"
    click.echo(
        f"ett: {would} {found.runs:,} run folders ({found.run_bytes / 2**20:,.1f} MiB),"
        f" the rows of {found.jobs:,} jobs",
        err=True,
    )
