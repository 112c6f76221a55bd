"""`ett ls`, `ett rm` and `ett explain`: which runs there are, deleting them, what words mean."""

import os
import shutil
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click

from torchett.cli.output import json_option, print_json, print_rich, speaks_plainly
from torchett.model.errors import InputError, RunError


@click.command("ls")
@click.option("-n", "most", default=20, show_default=True, help="How many runs; 0 for all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@speaks_plainly
def ls(most: int, as_json: bool) -> None:
    """List the runs of this folder, newest first."""
    from torchett.record.identity import runs_folder
    from torchett.runs.summary import RunSummary, run_folders, summaries

    runs = runs_folder(os.environ).absolute()
    if not runs.is_dir():
        raise RunError(f"{runs}: no such folder: set ETT_RUNS, or run `ett run -- COMMAND` first")
    found = list(summaries(runs, most or None))
    total = len(run_folders(runs))
    if as_json:
        shown = [asdict(one) | {"path": str(one.path)} for one in found]
        print_json({"folder": str(runs), "total": total, "runs": shown})
        return
    if not found:
        click.echo(f"ett: {runs} has no runs yet", err=True)
        return
    from rich.table import Table

    from torchett.report.words import size

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("run", overflow="fold")
    table.add_column("began")
    for title in ("ranks", "attempts", "ETT%", "failures", "last step", "size"):
        table.add_column(title, justify="right")
    table.add_column("")

    def number(value: int | float | None, form: str = ",") -> str:
        return "–" if value is None else format(value, form)

    def state(one: RunSummary) -> str:
        return one.error or ("live" if one.live else "")

    for one in found:
        began = "–" if one.began_s is None else f"{datetime.fromtimestamp(one.began_s):%d %b %H:%M}"
        table.add_row(
            one.name,
            began,
            number(one.ranks),
            number(one.attempts),
            number(one.ett_percent, ".1f"),
            number(one.failures),
            number(one.last_step),
            size(one.bytes),
            state(one),
        )
    print_rich(table)
    if total > len(found):
        click.echo(f"ett: {total - len(found)} older runs; ett ls -n 0 shows all", err=True)


@click.command("rm")
@click.argument("runs", nargs=-1, required=True, metavar="RUN…")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@speaks_plainly
def rm(runs: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete runs with all they recorded."""
    from torchett.record.attempt_log import in_use
    from torchett.runs.folder import find_run

    found: list[Path] = [find_run(run) for run in runs]
    for path in found:
        if in_use(path):
            raise RunError(f"{path}: a launcher is writing to it; end the job first")
    if not yes:
        names = ", ".join(path.name for path in found)
        click.confirm(f"Delete {names}?", abort=True, err=as_json)
    deleted = list(dict.fromkeys(found))
    for path in deleted:
        shutil.rmtree(path)
        if not as_json:
            click.echo(f"ett: deleted {path}", err=True)
    if as_json:
        print_json({"deleted": [str(path) for path in deleted]})


@click.command("explain")
@click.argument("word", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@speaks_plainly
def explain(word: tuple[str, ...], as_json: bool) -> None:
    """Explain an account, a figure or column of a report, or a lever. Without WORD: list them.

    For an account that is a loss it also says how to lower it.
    """
    from torchett.launch.settings.switches import lever_meanings
    from torchett.report.glossary import Term, near, terms
    from torchett.report.glossary import explain as find

    levers = [Term(word=n, kind="lever", meaning=said) for n, said in lever_meanings().items()]
    text = " ".join(word)
    if not text:
        found = [*terms(), *levers]
        if as_json:
            print_json([asdict(term) for term in found])
            return
        from rich.table import Table

        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column("", no_wrap=True)
        table.add_column("", overflow="fold")
        for term in found:
            table.add_row(term.word, term.meaning)
        print_rich(table)
        return
    one = find(text, levers)
    if one is None:
        guesses = near(text, levers)
        hint = f"did you mean {', '.join(guesses)}?" if guesses else "`ett explain` lists all words"
        raise InputError(f"ett explain: no word '{text}': {hint}")
    if as_json:
        print_json(asdict(one))
        return
    click.echo(f"{one.word} ({one.kind}): {one.meaning}")
    if one.cure:
        click.echo(f"To lower it: {one.cure}")
