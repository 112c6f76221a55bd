"""`ett simulate job`: what share of a job's time would train, before it runs."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.checkpoint.plan import _duration
from torchett.cli.output import print_json, print_rich, speaks_plainly
from torchett.model.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from torchett.advise.job_life import Cycle, JobLife, Shares
    from torchett.advise.surface import Surface


@click.group()
def simulate() -> None:
    """What if: the life of a job with other failures, saves and restarts."""


@simulate.command()
@click.option("--run", metavar="RUN", help="Take values that are not given from this recorded run.")
@click.option(
    "--nodes", type=click.IntRange(1), default=1, show_default=True, help="Number of nodes."
)
@click.option(
    "--mtbf", metavar="TIME", help="Mean running time between failures of the job, such as 3h."
)
@click.option("--mtbf-counts-downtime", is_flag=True, help="The --mtbf includes recovery time.")
@click.option(
    "--failures-per-day",
    type=click.FloatRange(0, min_open=True),
    metavar="NUMBER",
    help="How often the job fails. Use it or --mtbf.",
)
@click.option(
    "--failures-per-1000-node-days",
    type=click.FloatRange(0, min_open=True),
    metavar="NUMBER",
    help="Failure rate of a fleet, as papers give it (Llama 3: 3.8).",
)
@click.option("--blocking", metavar="TIME", help="Time for which a durable save blocks training.")
@click.option("--upload", metavar="TIME", help="Time from there until the save is durable.")
@click.option(
    "--interval", metavar="TIME", help="Training time between durable saves (default: the best)."
)
@click.option("--restart", metavar="TIME", help="Time from a failure until training continues.")
@click.option(
    "--snapshot-blocking",
    metavar="TIME",
    help="Time for which a snapshot in memory blocks training.",
)
@click.option(
    "--snapshot-interval",
    metavar="TIME",
    help="Training time between snapshots (default: the best).",
)
@click.option(
    "--snapshot-restart",
    metavar="TIME",
    help="Time from a failure until training continues from a snapshot.",
)
@click.option(
    "--snapshot-share",
    type=click.FloatRange(0, 1),
    default=0.8,
    show_default=True,
    help="Share of failures after which a snapshot can be used.",
)
@click.option(
    "--lost-node-share",
    type=click.FloatRange(0, 1),
    default=0.2,
    show_default=True,
    help="Share of failures that need a replacement node.",
)
@click.option(
    "--spares", type=click.IntRange(0), help="Number of spare nodes (default: always enough)."
)
@click.option(
    "--repair", default="1d", show_default=True, help="Time until a lost node is repaired."
)
@click.option(
    "--preemptions-per-day",
    type=click.FloatRange(0),
    default=0.0,
    help="How often the job is preempted.",
)
@click.option(
    "--preemption-save",
    default="0s",
    metavar="TIME",
    help="Time that a save at a preemption takes.",
)
@click.option("--start", metavar="TIME", help="Time to Start.")
@click.option(
    "--shutdown", default="0s", metavar="TIME", help="Time between the last step and the job's end."
)
@click.option("--train", metavar="TIME", help="Total training time needed (default: no end).")
@click.option("--live", metavar="RUN", help="Print whether this running job should save now.")
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Write a plot of the table to this SVG file."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@speaks_plainly
def job(as_json: bool, plot: Path | None, live: str | None, **given: Any) -> None:
    """Estimate what share of a job's time trains.

    The interval says how far one job may be from the expected share.

    Without a rate of failures, given or measured, it shows a table over rates instead of one
    number.
    """
    if live is not None:
        _print_live(live, as_json=as_json)
        return
    asked = _asked(given)
    if asked.measured_failures:
        _print_expected(asked.life, as_json=as_json, plot=plot)
    else:
        _print_surface(asked.life, as_json=as_json, plot=plot)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    life: "JobLife"
    measured_failures: bool


def _asked(given: dict[str, Any]) -> _Asked:
    """The job that the options describe, with what a recorded run adds."""
    from torchett.advise.job_life import DAY_S, JobLife, Tier, mtbf_without_downtime

    run = _of_run(given["run"]) if given["run"] else {}
    positive = ("mtbf", "interval", "snapshot_interval", "train", "repair")
    times = {
        name: _duration(
            f"--{name.replace('_', '-')}", given[name], above=0 if name in positive else None
        )
        for name in (
            *("mtbf", "blocking", "upload", "interval", "restart", "start", "shutdown", "train"),
            *("snapshot_blocking", "snapshot_interval", "snapshot_restart", "repair"),
            "preemption_save",
        )
    }
    found = {name: run.get(name) if value is None else value for name, value in times.items()}
    found["mtbf"] = _mtbf_s(given, found["mtbf"])
    for name in ("blocking", "restart"):
        if found[name] is None:
            raise InputError(f"expected --{name} TIME, or --run RUN of a job that shows it")
    restart_s = found["restart"] or 0.0
    mtbf_s = found["mtbf"]
    if mtbf_s is not None and given["mtbf_counts_downtime"]:
        mtbf_s = mtbf_without_downtime(mtbf_s, restart_s)
    snapshot = None
    if found["snapshot_blocking"] is not None:
        quick_s = found["snapshot_restart"]
        snapshot = Tier(
            blocking_s=found["snapshot_blocking"],
            restart_s=restart_s if quick_s is None else quick_s,
            interval_s=found["snapshot_interval"],
        )
    life = JobLife(
        mtbf_s=mtbf_s or DAY_S,
        durable=Tier(
            blocking_s=found["blocking"] or 0.0,
            upload_s=found["upload"] or 0.0,
            restart_s=restart_s,
            interval_s=found["interval"],
        ),
        snapshot=snapshot,
        snapshot_share=given["snapshot_share"] if snapshot else 0.0,
        lost_node_share=given["lost_node_share"],
        nodes=given["nodes"],
        spares=given["spares"],
        repair_s=found["repair"] or 0.0,
        preemptions_per_day=given["preemptions_per_day"],
        preemption_save_s=found["preemption_save"] or 0.0,
        start_s=found["start"] or 0.0,
        shutdown_s=found["shutdown"] or 0.0,
        train_s=found["train"],
    )
    return _Asked(life=life, measured_failures=mtbf_s is not None)


def _mtbf_s(given: dict[str, Any], known_s: float | None) -> float | None:
    """The time between failures by whichever option says it, else what is known."""
    from torchett.advise.job_life import DAY_S, mtbf_of_nodes

    rates = [given["mtbf"], given["failures_per_day"], given["failures_per_1000_node_days"]]
    if sum(rate is not None for rate in rates) > 1:
        raise InputError(
            "expected one of --mtbf, --failures-per-day and --failures-per-1000-node-days"
        )
    if given["failures_per_day"] is not None:
        return float(DAY_S / given["failures_per_day"])
    if given["failures_per_1000_node_days"] is not None:
        return mtbf_of_nodes(given["failures_per_1000_node_days"], given["nodes"])
    return known_s


def _of_run(run: str) -> dict[str, float | None]:
    """What a recorded run says: its failures only if there were any."""
    from torchett.ledger.metrics.saves import measure_saves
    from torchett.runs.folder import find_run
    from torchett.runs.reader import RunReader

    reader = RunReader(find_run(run)).poll()
    ledger = reader.ledger()
    saves = measure_saves(reader.history(), ledger)
    start_ns = ledger.time_to_start_ns
    return {
        "mtbf": saves.exposure_s / saves.failures if saves.failures else None,
        "blocking": saves.blocking_s,
        "upload": saves.upload_s,
        "interval": saves.interval_s,
        "restart": saves.recover_s,
        "start": None if start_ns is None else start_ns / 1e9,
    }


def _print_expected(life: "JobLife", *, as_json: bool, plot: Path | None) -> None:
    from torchett.advise.job_life import cycle_of, expected
    from torchett.advise.monte_carlo import play, play_to_the_end

    shares, cycle = expected(life), cycle_of(life)
    if life.train_s is not None:
        played = play_to_the_end(life, jobs=2000)
        between = played.between(0.8)
    else:
        played = play(life, jobs=500, failures=100)
        between = None
    _write_plot(life, plot)
    if as_json:
        print_json(
            {
                "ett_percent": shares.ett_percent,
                "monte_carlo_percent": 100 * played.ett,
                "interval_80_percent": None if between is None else [100 * b for b in between],
                "shares": {name: getattr(shares, name) for name in shares.__slots__},
                "mtbf_s": life.mtbf_s,
                "durable_interval_s": cycle.snapshots * cycle.train_s,
                "snapshot_interval_s": cycle.train_s if cycle.snapshot_s else None,
            }
        )
        return
    print_rich(_page(life, shares, cycle, 100 * played.ett, between))


def _page(
    life: "JobLife",
    shares: "Shares",
    cycle: "Cycle",
    played_percent: float,
    between: tuple[float, float] | None,
) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from torchett.model.durations import duration

    def time_of(s: float) -> str:
        return duration(round(s * 1e9))

    head = Text()
    head.append(f"{shares.ett_percent:.1f}% effective", style="bold green")
    head.append(f" expected, a failure every {time_of(life.mtbf_s)} of running time")
    if between is not None:
        low, high = (100 * share for share in between)
        head.append(f"\n80% of jobs of this length: {low:.1f} to {high:.1f}%")
    head.append(f"\nplayed out at random: {played_percent:.1f}%", style="dim")
    every = f"durable save every {time_of(cycle.snapshots * cycle.train_s)}"
    if cycle.snapshot_s:
        every += f", snapshot in memory every {time_of(cycle.train_s)}"
    head.append(f"\n{every}\n")
    table = Table(box=None, pad_edge=False)
    table.add_column("share of the nodes' time")
    table.add_column("%", justify="right")
    for name in shares.__slots__:
        if share := getattr(shares, name):
            table.add_row(name.replace("_", " "), f"{100 * share:.2f}")
    return Group(head, table)


def _print_surface(life: "JobLife", *, as_json: bool, plot: Path | None) -> None:
    from torchett.advise.surface import surface

    found = surface(life)
    _write_plot(life, plot)
    if as_json:
        print_json({"ett_percent": None, "why": "no rate of failures", "surface": found.to_json()})
        return
    print_rich(_surface_table(found))


def _surface_table(found: "Surface") -> "RenderableType":
    from rich.table import Table

    from torchett.advise.surface import said

    table = Table(
        box=None,
        title="ETT% by failures and restarts: no rate of failures was given or measured",
        title_justify="left",
    )
    table.add_column("between failures")
    for restart in found.restart_s:
        table.add_column(f"restart {said(restart)}", justify="right")
    for mtbf, row in zip(found.mtbf_s, found.ett_percent, strict=True):
        table.add_row(said(mtbf), *(f"{percent:.1f}" for percent in row))
    return table


def _write_plot(life: "JobLife", plot: Path | None) -> None:
    if plot is None:
        return
    from torchett.advise.surface import surface, svg
    from torchett.runs.output_files import write_text_file

    write_text_file(plot, [svg(surface(life), "Effective training time by failures and restarts")])


def _print_live(run: str, *, as_json: bool) -> None:
    from torchett.advise.live import save_now
    from torchett.ledger.metrics.saves import measure_saves
    from torchett.runs.folder import find_run
    from torchett.runs.reader import RunReader

    reader = RunReader(find_run(run)).poll()
    ledger, history = reader.ledger(), reader.history()
    now_ns = round((time.time() - history.epoch_s) * 1e9)
    saves = measure_saves(history, ledger)
    verdict = save_now(saves, history.checkpoints, ledger.window.tenures[-1], now_ns)
    if as_json:
        print_json(verdict.to_json())
    else:
        click.echo(verdict.sentence)
