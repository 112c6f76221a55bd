"""What preemption costs by policy, on recorded arrivals, and how fast the simulator is.

    ./dev bench schedule --data FOLDER [--seeds 5] [--part philly|loads|helios|signal|sizes]

FOLDER holds the traces under these names (CSV: see docs/schedule.md for their columns):

    philly_passed_jobs.csv.gz      Philly (msr-fiddle, CC-BY-4.0): submit_time, vc, gpus, run_s
    philly_vc_nodes.csv            sizes of its VCs (HeliosArtifact, MIT)
    helios_status_15k.csv.gz       Helios (CC-BY-4.0): submit_s, user, gpus, run_s, status
    philly_status_first15k.csv.gz  Philly with status: what failure rates by job size come from

Without --data only the sizes are measured, on made-up jobs.

Philly: submissions of October and November 2017 at their recorded times; the cluster is as large as
makes the load; quotas in proportion to the real sizes of the VCs. Helios: jobs of 1 to 32 GPUs, ten
VCs made of its users by a hash, quotas in proportion to use, with failures. Seed 0 plays arrivals
as recorded; others shift each VC's by up to 12 hours, and draw other save times and failures.

The same for every policy: checkpoints every 30 min, durable 33 s (median) after a save begins, a
restart of 202 s, GPUs free 5 s after a signal, 30 s of grace (Kueue's default), jobs requeued at
once under their old submission time (Slurm would hold them for 121 s), freed GPUs kept for the job
they were freed for, lending in order of submission with smaller jobs passing ones that do not fit,
borrowed jobs that become jobs within quota where there is room. `youngest-first` is Kueue's order:
the latest start first, and candidates not needed after all given back.

No job saves on the signal, but in `signal` all do, under both policies: there youngest-first gives
them Kueue's 30 s, and a save that takes longer is lost. `preempts` counts signals.
"""

import statistics
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from _table import Bar, Column, Report, Row, Sheet, fresh, options, peak_bytes, serve

from torchett.schedule import (
    OURS,
    POLICIES,
    Habits,
    Trace,
    read_failures,
    read_sizes,
    read_trace,
    simulate,
    synthetic,
    workload,
)
from torchett.schedule.simulation.outcome import mean

BOTH = ("youngest-first", "ours")
# Ours without waits and reserve has to choose victims most often: what costs the simulator most.
EAGER = replace(OURS, name="ours, eager", wait_share=0.0, reserve_share=0.0)
PARTS = ("philly", "loads", "helios", "signal", "sizes")


def philly(data: Path) -> Trace:
    sizes = read_sizes(data / "philly_vc_nodes.csv")
    path = data / "philly_passed_jobs.csv.gz"
    return read_trace(path, sizes=sizes, since="2017-10-01", until="2017-12-01")


def helios(data: Path) -> Trace:
    return read_trace(data / "helios_status_15k.csv.gz", most_gpus=32)


def compare(
    trace: Trace, names: tuple[str, ...], *, load: float, seeds: int, **more: Any
) -> list[Row]:
    """One row for each policy: means over the seeds."""
    works = [workload(trace, load=load, seed=seed, **more) for seed in range(seeds)]
    rows = []
    for name in names:
        outcomes = [simulate(work, POLICIES[name]) for work in works]
        ratios = [outcome.preempts_per_job for outcome in outcomes]
        spread = statistics.stdev(ratios) if len(ratios) > 1 else 0.0
        rows.append(
            {"policy": name, "load": load, "gpus": works[0].gpus, "ratio_spread": spread}
            | mean(outcomes)
        )
    return rows


def sized(gpus: int, jobs: int, policy: str) -> Row:
    """How long one run takes, and the memory of a process that does nothing else."""
    trace = synthetic(jobs, vcs=24, nodes_of=8)
    before = time.perf_counter()
    work = workload(trace, load=1.2, gpus=gpus)  # below that, so large a cluster preempts little
    outcome = simulate(work, EAGER if policy == EAGER.name else POLICIES[policy])
    took = time.perf_counter() - before
    return {
        "policy": policy,
        "gpus": gpus,
        "jobs": jobs,
        "events": outcome.events,
        "preemptions": outcome.preemptions,
        "seconds": took,
        "us_per_event": 1e6 * took / outcome.events,
        "mib": peak_bytes() / 2**20,
    }


COLUMNS = [
    Column("policy", "policy"),
    Column("load", "load", "{:g}".format),
    Column("gpus", "GPUs", "{:,}".format),
    Column("preempts_per_job", "preempts/job", "{:.4f}".format),
    Column("ratio_spread", "± seeds", "{:.4f}".format),
    Column("most_preempts", "most/job", "{:.0f}".format),
    Column("lost_gpu_h", "lost GPU-h", "{:,.1f}".format),
    Column("restarting_gpu_h", "restarting", "{:,.1f}".format),
    Column("leaving_gpu_h", "leaving", "{:,.1f}".format),
    Column("failures_gpu_h", "failures", "{:,.0f}".format),
    Column("quota_wait_percent", "quota wait %", "{:.4f}".format),
    Column("longest_quota_wait_s", "longest, s", "{:,.0f}".format),
    Column("jct_p50_s", "JCT p50 s", "{:,.0f}".format),
    Column("jct_p95_s", "JCT p95 s", "{:,.0f}".format),
    Column("queue_s", "queue s", "{:,.0f}".format),
    Column("unfinished", "never ran", "{:.0f}".format),
]
SIZE_COLUMNS = [
    Column("policy", "policy"),
    Column("gpus", "GPUs", "{:,}".format),
    Column("jobs", "jobs", "{:,}".format),
    Column("events", "events", "{:,}".format),
    Column("preemptions", "preemptions", "{:,}".format),
    Column("seconds", "seconds", "{:.1f}".format),
    Column("us_per_event", "µs/event", "{:.1f}".format),
    Column("mib", "MiB", "{:.0f}".format),
]


def bars(where: str, rows: list[Row]) -> list[Bar]:
    """Ours against youngest-first, all at once."""
    found = {row["policy"]: row for row in rows}
    base, ours = found["youngest-first"], found["ours"]

    def change(key: str) -> float:
        return 100 * (ours[key] / base[key] - 1) if base[key] else 0.0

    limits = (
        ("preemptions per job", "preempts_per_job", -50.0),
        ("GPU-hours lost", "lost_gpu_h", -90.0),
        ("JCT p95", "jct_p95_s", 5.0),
        ("mean queue", "queue_s", 10.0),
    )
    made = [
        Bar(f"{where}: {what}", f"≤ {limit:+g}%", f"{change(key):+.1f}%", change(key) <= limit)
        for what, key, limit in limits
    ]
    most, wait = ours["most_preempts"], ours["quota_wait_percent"]
    return [
        *made,
        Bar(f"{where}: most of one job, any seed", "≤ 6", f"{most:.0f}", most <= 6),
        Bar(f"{where}: quota wait", "≤ 0.05%", f"{wait:.4f}%", wait <= 0.05),
    ]


def measure(args: Namespace, report: Report) -> None:
    parts = PARTS if args.part is None else (args.part,)
    seeds = args.seeds
    if args.data is not None and {"philly", "loads", "signal"} & set(parts):
        trace = philly(args.data)
        if "philly" in parts:
            rows = compare(trace, tuple(POLICIES), load=0.85, seeds=seeds)
            report.sheets.append(Sheet(f"Philly, {len(trace):,} jobs", COLUMNS, rows))
            report.bars += bars("Philly 0.85", rows)
        if "loads" in parts:
            rows = []
            for load in (0.7, 1.0):
                at = compare(trace, BOTH, load=load, seeds=seeds)
                report.bars += bars(f"Philly {load:g}", at)
                rows += at
            report.sheets.append(Sheet("Philly, other loads", COLUMNS, rows))
        if "signal" in parts:
            rows = compare(trace, BOTH, load=0.85, seeds=seeds, habits=Habits(on_signal=1.0))
            report.sheets.append(Sheet("Philly, every job saves on the signal", COLUMNS, rows))
    if args.data is not None and "helios" in parts:
        trace = helios(args.data)
        rates = read_failures(args.data / "philly_status_first15k.csv.gz")
        rows = []
        for load in (0.7, 0.85, 1.0):
            at = compare(trace, BOTH, load=load, seeds=seeds, failures=rates)
            report.bars += bars(f"Helios {load:g}", at)
            rows += at
        title = f"Helios, {len(trace):,} jobs of 1–32 GPUs, with failures; the same parameters"
        report.sheets.append(Sheet(title, COLUMNS, rows))
    if "sizes" in parts:
        sizes = [(3_000, 3_000), (10_000, 10_000), (30_000, 30_000), (100_000, 100_000)]
        rows = [
            fresh(sized, gpus=gpus, jobs=jobs, policy=policy)
            for gpus, jobs in (sizes[:2] if args.quick else sizes)
            for policy in (*BOTH, EAGER.name)
        ]
        report.sheets.append(
            Sheet("time and memory, made-up jobs of 8 to 512 GPUs at load 1.2", SIZE_COLUMNS, rows)
        )
        for row in rows if not args.quick else ():
            if row.get("gpus") == 100_000:
                what = f"100 k GPUs, 100 k jobs, {row['policy']}"
                took, mib = row["seconds"], row["mib"]
                met = took <= 300 and mib <= 2048
                report.bars.append(
                    Bar(what, "≤ 300 s, ≤ 2048 MiB", f"{took:.1f} s, {mib:.0f} MiB", met)
                )


def main() -> None:
    serve([sized])
    parser = options(__doc__ or "")
    parser.add_argument("--data", type=Path, help="folder of the traces")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--part", choices=PARTS, help="only this one")
    args = parser.parse_args()
    if args.quick:
        args.seeds = 1
    said = f"{args.seeds} seeds" if args.data is not None else "no --data: made-up jobs only"
    report = Report("schedule", facts={"seeds": said})
    measure(args, report)
    report.show(args.json)


if __name__ == "__main__":
    main()
