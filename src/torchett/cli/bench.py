"""`ett bench`: run a reference workload with and without the levers, and show both ledgers."""

import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from torchett.cli.output import print_json, print_rich, speaks_plainly

if TYPE_CHECKING:
    from torchett.bench.schedule import Schedule
    from torchett.bench.side import Finished, Side
    from torchett.bench.verdict import SideResult
    from torchett.bench.workload import Workload

_SAY_S = 10.0


@click.command()
@click.option(
    "--quick",
    "size",
    flag_value="quick",
    default=True,
    help="Two CPU ranks; takes minutes (default).",
)
@click.option("--short", "size", flag_value="short", help="Two CPU ranks, one failure, 400 steps.")
@click.option("--h200", "size", flag_value="h200", help="One large GPU.")
@click.option(
    "--schedule", "name", help="The failures to inject (default: mixed; with --short: one kill)."
)
@click.option(
    "--levers", is_flag=True, help="Also run with each lever alone, and with each lever left out."
)
@click.option("--steps", type=click.IntRange(20), help="Number of training steps.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep runs and logs in this folder; finished runs there are used again.",
)
@click.option("--html", type=click.Path(path_type=Path), help="Write an HTML page to this file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@speaks_plainly
def bench(
    size: str,
    name: str | None,
    levers: bool,
    steps: int | None,
    folder: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Train with and without the levers through the same failures."""
    from dataclasses import replace

    from torchett.bench.schedule import SHORT, schedule
    from torchett.bench.workload import WORKLOADS
    from torchett.report.bench import bench_page, bench_report
    from torchett.report.pages.two_jobs import Exhibit
    from torchett.runs.output_files import expect_writable, write_text_file

    wrong = SHORT if name is None and size == "short" else schedule(name or "mixed")
    workload = WORKLOADS[size]
    if steps:
        workload = replace(workload, steps=steps)
    if html is not None:
        expect_writable(html)
    outcomes = _outcomes(workload, wrong, levers, folder)
    stock, ours = outcomes["stock"], outcomes["torchett"]
    shown = _shown(workload, wrong, outcomes, levers)
    if html is not None:
        before, after = (
            Exhibit(title=one.title, ledger=one.ledger, history=one.history)
            for one in (stock, ours)
        )
        write_text_file(html, [bench_page(before, after, shown)])
    if as_json:
        print_json(shown)
        return
    print_rich(bench_report(stock.ledger, ours.ledger, shown))
    if html is not None:
        click.echo(f"ett: {html} written", err=True)


def _outcomes(
    workload: "Workload", wrong: "Schedule", levers: bool, folder: Path | None
) -> "dict[str, SideResult]":
    """What came of each side: run now, or recalled from an earlier bench in this folder."""
    from torchett.bench.levers import UNBROKEN, sides
    from torchett.bench.side import Side, make_even, recalled
    from torchett.bench.verdict import settled

    with ExitStack() as kept:
        usual = signal.signal(signal.SIGTERM, _leave)
        kept.callback(signal.signal, signal.SIGTERM, usual)
        if folder is None:
            folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="ett-bench-")))
        planned = [
            Side(name=name, levers=pulled, folder=folder.absolute() / name)
            for name, pulled in sides(levers).items()
        ]
        for side in planned:
            side.make_room()
        through = {side: None if side.name == UNBROKEN else wrong for side in planned}
        known = {side: recalled(side, workload, through[side]) for side in planned}
        if None in known.values():
            make_even(workload.on_gpu)
        return {
            side.name: settled(done or _driven(side, workload, through[side]), side.name)
            for side, done in known.items()
        }


def _shown(
    workload: "Workload", wrong: "Schedule", outcomes: "dict[str, SideResult]", levers: bool
) -> dict[str, Any]:
    """What the report and the page say, as values."""
    from torchett.bench.levers import UNBROKEN, only, won_s
    from torchett.bench.pulse import unsteady
    from torchett.bench.verdict import lever_rows, measured_apart, same_weights, saved_percent

    stock, ours = outcomes["stock"], outcomes["torchett"]
    same = same_weights([stock, ours])
    remarks = (
        unsteady(stock.pulse_s, ours.pulse_s),
        measured_apart(same, on_gpu=workload.on_gpu),
    )
    shown: dict[str, Any] = {
        "workload": f"{workload.name} {workload.preset}",
        "ranks": workload.ranks,
        "steps": workload.steps,
        "schedule": wrong.words(workload.steps, workload.ranks),
        "went_wrong": wrong.lines(workload.steps, workload.ranks),
        "stock": stock.to_json(),
        "torchett": ours.to_json(),
        "saved_percent": saved_percent(stock, ours),
        "same_weights": same,
        "won_s": won_s(stock.ledger, ours.ledger),
        "mind": [remark for remark in remarks if remark],
    }
    if levers:
        unbroken = outcomes[UNBROKEN]
        shown["levers"] = lever_rows(outcomes)
        shown["no_lever"] = outcomes[only(frozenset())].to_json()
        shown["unbroken"] = unbroken.to_json()
        shown["same_as_unbroken"] = same_weights([unbroken, stock, ours])
    return shown


def _leave(number: int, frame: Any) -> NoReturn:
    """End by an exception, so that the job under way is ended, too."""
    sys.exit(128 + number)


def _driven(side: "Side", workload: "Workload", wrong: "Schedule | None") -> "Finished":
    """A side, run to its end; what an unfinished bench left of it is forgotten."""
    from torchett.bench.side import drive, remember

    how = f"through '{wrong.name}'" if wrong is not None else "without a failure"
    click.echo(f"ett: {side.name}: {workload.steps} steps {how} …", err=True)
    sys.stderr.flush()
    side.clear()
    finished = drive(side, workload, wrong, _Progress(side.name, workload.steps))
    remember(finished, workload, wrong)
    return finished


class _Progress:
    """Says how far a side is, at most once in ten seconds."""

    def __init__(self, name: str, steps: int) -> None:
        self._name, self._steps = name, steps
        self._began = self._said = time.monotonic()

    def __call__(self, starts: int, step: int) -> None:
        now = time.monotonic()
        if now - self._said >= _SAY_S:
            self._said = now
            again = f", started {starts} times" if starts > 1 else ""
            took = f"{now - self._began:.0f} s"
            click.echo(
                f"ett: {self._name}: step {step:,} of {self._steps:,}, {took}{again}", err=True
            )
