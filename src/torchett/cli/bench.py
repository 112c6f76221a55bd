"""`ett bench`: run a reference workload with and without the levers, and show both ledgers."""

import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.speak import print_json, print_rich, speaks_plainly

if TYPE_CHECKING:
    from torchett.bench.schedule import Schedule
    from torchett.bench.verdict import Outcome
    from torchett.bench.workload import Workload


@click.command()
@click.option("--quick", "size", flag_value="quick", default=True, help="Two CPU ranks, minutes.")
@click.option("--h200", "size", flag_value="h200", help="One large GPU.")
@click.option("--schedule", "name", default="mixed", show_default=True, help="What goes wrong.")
@click.option("--levers", is_flag=True, help="Each lever alone and each left out, too.")
@click.option("--steps", type=click.IntRange(20), help="Length of the job.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep runs and logs here; what is done there is not done again.",
)
@click.option("--html", type=click.Path(path_type=Path), help="Write the page to this file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@speaks_plainly
def bench(
    size: str,
    name: str,
    levers: bool,
    steps: int | None,
    folder: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Train with and without the levers through the same failures."""
    from dataclasses import replace

    from torchett.bench.levers import LEVERS, NAMES, won_s
    from torchett.bench.pulse import unsteady
    from torchett.bench.schedule import schedule
    from torchett.bench.side import make_even
    from torchett.bench.verdict import same_weights, saved_percent
    from torchett.bench.workload import WORKLOADS
    from torchett.report.bench import bench_report, lever_report
    from torchett.report.page import Exhibit, page
    from torchett.report.words import plural
    from torchett.runs.files import write_whole

    wrong = schedule(name)
    workload = WORKLOADS[size]
    if steps:
        workload = replace(workload, steps=steps)
    with ExitStack() as kept:
        if folder is None:
            folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="ett-bench-")))
        every = frozenset(NAMES)
        make_even(workload.on_gpu)
        stock = _outcome("stock", None, workload, wrong, folder)
        ours = _outcome("torchett", every, workload, wrong, folder)
        shown: dict[str, Any] = {
            "workload": f"{workload.name} {workload.preset}",
            "ranks": workload.ranks,
            "steps": workload.steps,
            "schedule": wrong.words(workload.steps, workload.ranks),
            "stock": stock.to_json(),
            "torchett": ours.to_json(),
            "saved_percent": saved_percent(stock, ours),
            "same_weights": same_weights([stock, ours]),
            "won_s": won_s(stock.ledger, ours.ledger),
            "unsteady": unsteady(stock.pulse_s, ours.pulse_s),
        }
        rows = []
        if levers:
            unbroken = _outcome("unbroken", None, workload, None, folder)
            none = _outcome("no-lever", frozenset(), workload, wrong, folder)
            for lever in LEVERS:
                one, needs = frozenset({lever.name}), lever.needs
                base = none
                if needs:
                    base = _outcome(_only(needs), needs, workload, wrong, folder)
                alone = _outcome(_only(needs | one), needs | one, workload, wrong, folder)
                without = _outcome(f"without-{lever.name}", every - one, workload, wrong, folder)
                rows.append(
                    {
                        "lever": lever.title,
                        "needs": sorted(needs),
                        "alone_s": base.wasted_s - alone.wasted_s,
                        "left_out_s": without.wasted_s - ours.wasted_s,
                        "alone_ett_percent": alone.ledger.ett_percent,
                        "left_out_ett_percent": without.ledger.ett_percent,
                        "same_weights": same_weights([unbroken, alone, without]),
                    }
                )
            shown["levers"] = rows
            shown["no_lever"] = none.to_json()
            shown["unbroken"] = unbroken.to_json()
            shown["same_as_unbroken"] = same_weights([unbroken, stock, ours])
    if html is not None:
        before, after = (
            Exhibit(title=one.title, ledger=one.ledger, history=one.history)
            for one in (stock, ours)
        )
        said = [
            f"{shown['workload']}, {plural(workload.ranks, 'rank')}, {workload.steps:,} steps."
            f" What went wrong: {', '.join(shown['schedule'])}.",
            f"Rank-seconds that were not training: {stock.wasted_s:.1f} → {ours.wasted_s:.1f},"
            f" {shown['saved_percent']:.0f}% fewer.",
            *([f"Mind: {shown['unsteady']}."] if shown["unsteady"] else ()),
        ]
        write_whole(html, [page("The same job, the same failures", said, before, after)])
    if as_json:
        print_json(shown)
        return
    print_rich(bench_report(stock.ledger, ours.ledger, shown))
    if rows:
        print_rich(lever_report(rows, shown["same_as_unbroken"]))
    if html is not None:
        click.echo(f"ett: {html} written", err=True)


def _only(chosen: frozenset[str]) -> str:
    """The name of a side with these levers and no others."""
    return "-".join(("only", *sorted(chosen)))


def _outcome(
    name: str,
    levers: frozenset[str] | None,
    workload: "Workload",
    wrong: "Schedule | None",
    folder: Path,
) -> "Outcome":
    """The outcome of one side; one that is done already is only read."""
    from torchett.bench.side import Finished, Side, drive
    from torchett.bench.verdict import settled
    from torchett.runs.files import write_whole

    side = Side(name=name, levers=levers, folder=folder.absolute() / name)
    done = side.folder / "done.json"
    try:
        known = json.loads(done.read_text())
    except (OSError, ValueError):
        known = None
    through = wrong.name if wrong is not None else None
    what = {"steps": workload.steps, "schedule": through, "workload": workload.preset}
    if known is not None and known.get("what") == what:
        run = side.folder / "runs" / name
        facts = {key: known.get(key) for key in ("digest", "starts", "pulse_s")}
        finished = Finished(side=side, run=run, **facts)
    else:
        how = f"through '{through}'" if through else "without a failure"
        click.echo(f"ett: {name}: {workload.steps} steps {how} …", err=True)
        sys.stderr.flush()
        side.clear()
        finished = drive(side, workload, wrong)
        facts = {"what": what, "digest": finished.digest, "starts": finished.starts}
        write_whole(done, [json.dumps(facts | {"pulse_s": finished.pulse_s})])
    return settled(finished, name)
