"""`ett schedule …`: what a preemption policy would cost on a trace."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.checkpoint.plan import _duration
from torchett.cli.output import print_json, print_rich, speaks_plainly
from torchett.model.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from torchett.schedule import Trace, Workload


@click.group()
def schedule() -> None:
    """Scheduling: what preemption costs, by policy, on your own jobs or made-up ones."""


@schedule.command()
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@click.option(
    "--policy", "names", multiple=True, help="Simulate this policy only; may be repeated."
)
@click.option(
    "--load",
    "loads",
    multiple=True,
    type=float,
    help="GPU-seconds requested ÷ GPU-seconds available.",
)
@click.option(
    "--seeds",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Number of random repetitions.",
)
@click.option(
    "--gpus",
    type=click.IntRange(1),
    help="GPUs of the cluster (default: as many as give the load).",
)
@click.option(
    "--vcs", type=click.Path(path_type=Path), help="CSV file with the size of each virtual cluster."
)
@click.option(
    "--failures",
    type=click.Path(path_type=Path),
    help="CSV file of jobs with a column `status`; gives failure rates.",
)
@click.option("--since", metavar="TIME", help="Use only jobs submitted at this time or later.")
@click.option("--until", metavar="TIME", help="Use only jobs submitted before this time.")
@click.option("--most-gpus", type=click.IntRange(1), help="Leave out jobs with more GPUs.")
@click.option(
    "--jobs",
    default=5000,
    show_default=True,
    type=click.IntRange(10),
    help="How many jobs to make up if no TRACE is given.",
)
@click.option(
    "--checkpoint", default="30min", show_default=True, help="Training time between two saves."
)
@click.option(
    "--save",
    default="33s",
    show_default=True,
    help="Median time from the begin of a save until it is durable.",
)
@click.option(
    "--restart",
    default="202s",
    show_default=True,
    help="Time from new GPUs until training continues.",
)
@click.option("--grace", default="30s", show_default=True, help="Time from a signal to the kill.")
@click.option(
    "--hold",
    default="0s",
    show_default=True,
    help="Time that a preempted job is held before it may start again (Slurm: 121s).",
)
@click.option(
    "--on-signal",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Share of jobs that save when they are signalled.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write a bar chart to this SVG file.")
@speaks_plainly
def simulate(
    trace: Path | None,
    names: tuple[str, ...],
    loads: tuple[float, ...],
    seeds: int,
    gpus: int | None,
    failures: Path | None,
    as_json: bool,
    plot: Path | None,
    **given: Any,
) -> None:
    """Play a trace under each policy and compare what preemption costs.

    Without TRACE jobs are made up. A TRACE is a CSV file with submit, vc (or user), gpus and run_s,
    or what `sacct -X -P -o Submit,Account,AllocTRES,ElapsedRaw` prints.
    """
    from torchett.runs.output_files import expect_writable
    from torchett.schedule import POLICIES, Habits, Settings, read_failures, workload
    from torchett.schedule.policy import policy_named

    policies = [policy_named(name) for name in names] or list(POLICIES.values())
    for load in loads:
        if not 0 < load <= 10:
            raise InputError(f"--load: expected a number above 0 and up to 10, found {load:g}")
    habits = Habits(
        checkpoint_s=_seconds("--checkpoint", given["checkpoint"], above=0),
        save_s=_seconds("--save", given["save"]),
        restart_s=_seconds("--restart", given["restart"]),
        on_signal=given["on_signal"],
    )
    settings = Settings(
        grace_s=_seconds("--grace", given["grace"]), hold_s=_seconds("--hold", given["hold"])
    )
    if plot is not None:
        expect_writable(plot)
    played = _trace(trace, given)
    rates = None if failures is None else read_failures(failures)
    rows: list[dict[str, Any]] = []
    for load in loads or (0.85,):
        works = [
            workload(played, load=load, gpus=gpus, seed=seed, habits=habits, failures=rates)
            for seed in range(seeds)
        ]
        rows += [_row(policy, load, works, settings) for policy in policies]
    if plot is not None:
        from torchett.runs.output_files import write_text_file
        from torchett.schedule.simulation.plot import svg

        write_text_file(plot, [svg(rows, f"Preemption policies: {played.name}")])
    if as_json:
        print_json({**_facts(played, works[0], seeds), "policies": rows})
    else:
        print_rich(_page(played, works[0], seeds, rows))


def _trace(path: Path | None, given: dict[str, Any]) -> "Trace":
    """The jobs in this file, as far as the options want them; made-up ones without a file."""
    from torchett.schedule import read_sizes, read_trace, synthetic

    if path is None:
        return synthetic(given["jobs"])
    return read_trace(
        path,
        sizes=None if given["vcs"] is None else read_sizes(given["vcs"]),
        most_gpus=given["most_gpus"],
        since=given["since"],
        until=given["until"],
    )


def _seconds(option: str, text: str, *, above: float | None = None) -> float:
    found = _duration(option, text, above=above)
    assert found is not None
    return found


def _row(policy: Any, load: float, works: "list[Workload]", settings: Any) -> dict[str, Any]:
    from torchett.schedule import simulate as play
    from torchett.schedule.simulation.outcome import mean

    return {
        "policy": policy.name,
        "load": load,
        **mean([play(work, policy, settings) for work in works]),
    }


def _facts(trace: "Trace", work: "Workload", seeds: int) -> dict[str, Any]:
    return {
        "trace": trace.name,
        "jobs": len(trace),
        "gpus": work.gpus,
        "quotas": dict(zip(work.vcs, work.quotas.tolist(), strict=True)),
        "seeds": seeds,
    }


_COLUMNS = (
    ("preempts_per_job", "preempts\n/ job", "{:.4f}"),
    ("most_preempts", "most of\none job", "{:.0f}"),
    ("lost_gpu_h", "GPU-h\nlost", "{:,.1f}"),
    ("restarting_gpu_h", "GPU-h\nrestarting", "{:,.1f}"),
    ("quota_wait_percent", "quota\nwait %", "{:.4f}"),
    ("jct_p50_s", "JCT p50\ns", "{:,.0f}"),
    ("jct_p95_s", "JCT p95\ns", "{:,.0f}"),
    ("queue_s", "mean\nqueue s", "{:,.0f}"),
)


def _page(
    trace: "Trace", work: "Workload", seeds: int, rows: list[dict[str, Any]]
) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from torchett.report.words import plural

    said = f"{trace.name}: {plural(len(trace), 'job')}, {plural(work.gpus, 'GPU')}"
    said += f", {plural(len(work.vcs), 'VC')}, {plural(seeds, 'seed')}\n"
    table = Table(box=None, pad_edge=False)
    table.add_column("policy")
    table.add_column("load", justify="right")
    for _, heading, _ in _COLUMNS:
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [form.format(row[key]) for key, _, form in _COLUMNS]
        table.add_row(row["policy"], f"{row['load']:g}", *cells)
    shown: list[RenderableType] = [Text(said, style="bold"), table]
    if any(row["unfinished"] for row in rows):
        which = ", ".join(
            f"{row['policy']} {row['unfinished']:.0f}" for row in rows if row["unfinished"]
        )
        shown.append(Text(f"jobs that never ran, larger than their VC's quota: {which}"))
    return Group(*shown)


@schedule.command()
@click.argument("run")
@click.option(
    "--form",
    default="json",
    show_default=True,
    type=click.Choice(["json", "slurm", "kueue", "kueue-spec", "volcano"]),
    help="JSON file, Slurm comment, or Kubernetes object to merge into the job's own.",
)
@speaks_plainly
def beacon(run: str, form: str) -> None:
    """Print what a scheduler should know about a run.

    The beacon says how old the last durable checkpoint is and what a restart costs.


    For Kubernetes: kubectl patch … --type merge -p "$(ett schedule beacon RUN --form kueue)"
    """
    import time

    from torchett.launch.scheduler.beacon_objects import (
        kueue_annotation,
        kueue_spec,
        volcano_annotation,
    )
    from torchett.launch.scheduler.run_beacon import RunBeacon
    from torchett.model.beacon import slurm_comment, to_json
    from torchett.runs.folder import find_run
    from torchett.runs.reader import RunReader

    found = RunBeacon(RunReader(find_run(run))).read()
    if found is None:
        raise InputError(f"{run}: expected a job that has begun, found no attempt")
    if form in ("json", "slurm"):
        click.echo(to_json(found) if form == "json" else slurm_comment(found))
        return
    now_s = time.time()
    objects = {
        "kueue": kueue_annotation(found, now_s),
        "kueue-spec": kueue_spec(found, now_s),
        "volcano": volcano_annotation(found),
    }
    print_json(objects[form])


schedule.add_command(simulate)
