"""A fleet: rolling a day up, asking a year of rows, and shipping records from many launchers.

rollup   run folders drawn from Philly's trace → rows; CPU, memory, and whether it is linear;
         beside it the same sums in DuckDB's SQL, as far as SQL says the rules
ray      the same on Ray, a worker killed in the middle
views    a year of rows, written as segments: CPU of what `ett fleet` asks
live     jobs that run: CPU of looking at all of them
ship     launchers to one server, beside a sequential writer with the same fdatasyncs
steps    of a trainer while its launcher ships and while it does not, in turn
kills    SIGKILL of server and shippers while records grow: are the folders byte-identical?

python benchmarks/fleet.py --parts rollup,views --jobs 10000 --rows 167 --year-jobs 3600000
"""

import datetime as dt
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _fleet_day import jobs_of_a_day, write_run
from _fleet_ship import kills, ship
from _fleet_steps import steps
from _fleet_year import write_year
from _table import Bar, Column, Report, Row, Sheet, bar, fresh, options, peak_bytes, serve

from torchett.fleet import Fleet
from torchett.fleet.figures import newest, shares, worst
from torchett.fleet.intake.rollup import roll_up, sources_of
from torchett.fleet.windows import Span, window_of
from torchett.record.flight import format as layout
from torchett.runs.flight_records import FRAME_DTYPE

PARTS = ("rollup", "ray", "views", "live", "ship", "steps", "kills")
LAST = dt.date(2026, 11, 18)
NOW = dt.datetime(2026, 11, 19)
LIVE_EVERY_S = 4.0

# The rules as SQL. What it leaves out: spans that overlap (they count twice), a step inside a span,
# the first step's compile, blocks that a resume divides, attempts that vanished, hours, labels.
SQL = """
WITH firsts AS (
    SELECT job, attempt, min(index) AS first FROM rows WHERE step GROUP BY ALL
), limits AS (
    SELECT job, attempt, min(first) OVER (
        PARTITION BY job ORDER BY attempt ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
    ) AS resumed FROM firsts
)
SELECT job, account, step, sum(t1 - t0) AS ns,
    step AND index >= coalesce(least(resumed, durable + 1), 4611686018427387904) AS lost
FROM rows LEFT JOIN limits USING (job, attempt) LEFT JOIN ends USING (job) GROUP BY ALL
"""


def rolled(folder: str, day: str, jobs: int, engine: str, workers: int) -> Row:
    """The first jobs of a day in a process of its own: CPU (its children's, too), memory, sums."""
    place = Path(folder)
    runs = [Path(day) / name for name in sorted(os.listdir(day))[:jobs]]
    wall, before = time.perf_counter(), os.times()
    with Fleet.open(place) as fleet:
        done = roll_up(fleet, sources_of(runs, "default"), engine=engine, workers=workers)
        after = os.times()
        total = fleet.query("SELECT sum(rank_ns) AS r, sum(effective_ns) AS e FROM jobs")
        (sums,) = total.to_pylist()
    cpu = sum(after[:4]) - sum(before[:4])
    return {
        "jobs": done.jobs, "errors": len(done.errors), "cpu": cpu, "peak": peak_bytes(),
        "wall": time.perf_counter() - wall, "rank_ns": int(sums["r"]), "effective": int(sums["e"]),
    }  # fmt: skip


def by_sql(runs: list[str]) -> Row:
    """Our kernel and DuckDB on the same rows, read beforehand."""
    import duckdb
    import pyarrow as pa

    from torchett.fleet.rows import JobSource, rows_of
    from torchett.ledger.rows import STEP
    from torchett.runs.reader import RunReader

    readers = [RunReader(Path(run)).poll() for run in runs]
    parts, ends = [], []
    for number, reader in enumerate(readers):
        rows = reader.history().rows
        columns = {"attempt": rows.attempt, "rank": rows.rank, "account": rows.account}
        columns |= {"index": rows.index, "t0": rows.t0_ns, "t1": rows.t1_ns}
        table = pa.table({name: pa.array(values) for name, values in columns.items()})
        table = table.append_column("step", pa.array(rows.account == STEP))
        parts.append(table.append_column("job", pa.array([number] * len(rows), pa.int32())))
        durable = max((c.step for c in reader.checkpoints()), default=-1)
        failed = reader.job.attempts[-1].outcome != "success"
        ends.append({"job": number, "durable": durable if failed else None})
    began = time.process_time()
    mine = 0
    for run, reader in zip(runs, readers, strict=True):
        source = JobSource(project="default", job=Path(run).name, path=run)
        mine += rows_of(reader, source).job["effective_ns"]
    kernel = time.process_time() - began
    db = duckdb.connect(config={"threads": 1})
    db.register("rows", pa.concat_tables(parts))
    db.register("ends", pa.Table.from_pylist(ends))
    began = time.process_time()
    found = db.sql(f"SELECT sum(ns) FROM ({SQL}) WHERE step AND NOT lost").fetchall()
    sql = time.process_time() - began
    theirs = int(found[0][0] or 0)
    return {"rows": sum(map(len, parts)), "kernel_cpu": kernel, "sql_cpu": sql,
            "off_percent": 100 * (theirs - mine) / max(mine, 1)}  # fmt: skip


def views(folder: str) -> Row:
    """CPU of each view over a year of rows: the first time, with a fleet just opened."""
    asked: dict[str, Any] = {
        "ls": lambda fleet: newest(fleet, 50),
        "show": lambda fleet: shares(fleet, None, Span()),
        "show --by team": lambda fleet: shares(fleet, "team", Span()),
        "show --by user --window month": lambda fleet: shares(fleet, "user", _window("month")),
        "show --by team --window week": lambda fleet: shares(fleet, "team", _window("week")),
        "show --by team --window day": lambda fleet: shares(fleet, "team", _window("day")),
        "worst --window week": lambda fleet: worst(fleet, "lost", 20, _window("week")),
        "worst": lambda fleet: worst(fleet, "lost", 20, Span()),
    }
    found: Row = {}
    for name, ask in asked.items():
        with Fleet.open(Path(folder)) as fleet:
            began = time.process_time()
            ask(fleet)
            found[name] = 1e3 * (time.process_time() - began)
    return found


def _window(name: str) -> Span:
    return window_of(name, None, None, NOW)


def live(folder: str, jobs: int, looks: int) -> Row:
    """CPU of a look at all live jobs, each of which has a new chunk of steps every time."""
    from torchett.fleet.intake.watch import FleetWatch, WatchedFolder

    place = Path(folder)
    day = [replace(job, ranks=1, attempts=1) for job in jobs_of_a_day(jobs)]
    ends = {job.name: job.begin_s + job.run_s for job in day}
    for job in day:
        write_run(job, place / "runs" / job.name, 40, live=True)
    with Fleet.open(place / "fleet") as fleet:
        watch = FleetWatch(fleet, [WatchedFolder(path=place / "runs", project="default")])
        watch.look(0.0)
        spent, changed = 0.0, 0
        for look in range(1, looks + 1):
            for job in day:
                path = place / "runs" / job.name / "attempt-0" / "rank-0.ett"
                with path.open("ab") as file:
                    file.write(_step(look, ends[job.name] + 5 * look))
            began = time.process_time()
            changed += watch.look(look * 1000.0)
            spent += time.process_time() - began
    return {"jobs": jobs, "changed": changed / looks, "look_cpu": spent / looks,
            "core": spent / looks / LIVE_EVERY_S}  # fmt: skip


def _step(look: int, at_s: int) -> bytes:
    """A chunk with one more step."""
    frame = np.zeros(1, dtype=FRAME_DTYPE)
    frame["kind"], frame["count"], frame["index"] = layout.STEP, 1, 100_000 + look
    frame["t0"], frame["t1"] = at_s * 10**9, (at_s + 4) * 10**9
    return layout.chunk(layout.FRAMES, frame.tobytes(), attempt=0, rank=0, reach=100_000 + look)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--parts", default=",".join(PARTS), help="which, comma between")
    parser.add_argument("--jobs", type=int, default=60, help="rollup, ray: jobs of the day")
    parser.add_argument("--rows", type=int, default=167, help="rollup: rows a rank record")
    parser.add_argument("--day", help="rollup, ray: a day of run folders, made if not there")
    parser.add_argument("--year-jobs", type=int, default=36_500)
    parser.add_argument("--year", help="views: a fleet with a year of rows, made if not there")
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--live-jobs", type=int, default=100)
    parser.add_argument("--launchers", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=64, help="ship: ranks a launcher")
    parser.add_argument("--rounds", type=int, default=4, help="ship: times that each record grows")
    parser.add_argument("--windows", type=int, default=8, help="steps: of 3 s each")
    parser.add_argument("--kills", type=int, default=3, help="of each side")
    parser.add_argument("--workers", type=int, default=2, help="ray: its CPUs")
    chosen = parser.parse_args()
    report = Report("fleet")
    with tempfile.TemporaryDirectory() as folder:
        for part in chosen.parts.split(","):
            ADD[part](report, Path(folder) / part, chosen)
            shutil.rmtree(Path(folder) / part, ignore_errors=True)
    report.show(chosen.json)


def add_rollup(report: Report, place: Path, chosen: Any) -> None:
    runs, records = _day(place, chosen)
    rows: list[Row] = []
    for share in (4, 1):
        some = max(len(runs) // share, 1)
        made = fresh(rolled, folder=str(place / f"fleet{share}"), day=str(Path(runs[0]).parent),
                     jobs=some, engine="local", workers=1)  # fmt: skip
        some_records = sum(records[:some])
        made |= {"records": some_records, "rows": some_records * chosen.rows}
        made["ms_record"] = 1e3 * made["cpu"] / max(some_records, 1)
        rows.append(made)
    sql = fresh(by_sql, runs=runs[: min(len(runs), 200)])
    columns = [
        Column("jobs", "jobs", "{:,}".format), Column("records", "rank records", "{:,}".format),
        Column("rows", "rows", "{:,}".format), Column("cpu", "CPU s", "{:.2f}".format),
        Column("ms_record", "ms a record", "{:.3f}".format),
        Column("peak", "peak MiB", lambda b: f"{b / 2**20:.0f}"),
    ]  # fmt: skip
    report.sheets.append(Sheet("roll-up, reading included", columns, rows))
    report.sheets.append(
        Sheet(
            "the rules alone, on rows read beforehand",
            [
                Column("rows", "rows", "{:,}".format),
                Column("kernel_cpu", "torchett s", "{:.2f}".format),
                Column("sql_cpu", "DuckDB SQL s", "{:.2f}".format),
                Column("off_percent", "SQL's effective off by %", "{:+.3f}".format),
            ],
            [sql],
            "SQL: no overlaps, no compile in a first step, no divided blocks, no hours, no labels",
        )
    )
    small, whole = rows
    report.bars += [
        bar("roll-up, CPU a rank record", "≤ 0.6 ms", whole["ms_record"],
            whole["ms_record"] <= 0.6, "ms"),
        bar("memory", "≤ 1 GiB", whole["peak"] / 2**30, whole["peak"] <= 2**30, "GiB"),
        bar("linear: CPU a record, whole ÷ quarter", "≤ 1.1",
            whole["ms_record"] / small["ms_record"], whole["ms_record"] <= 1.1 * small["ms_record"],
            "×"),
    ]  # fmt: skip


def add_ray(report: Report, place: Path, chosen: Any) -> None:
    from _fleet_ray import on_ray

    runs, _ = _day(place, chosen)
    here = fresh(rolled, folder=str(place / "local"), day=str(Path(runs[0]).parent),
                 jobs=len(runs), engine="local", workers=1)  # fmt: skip
    there = on_ray(place / "ray", runs, chosen.workers)
    same = rows_of_fleet(place / "local") == rows_of_fleet(place / "ray")
    ratio = there["cpu"] / here["cpu"]
    report.bars += [
        Bar("Ray, a worker killed: same rows", "yes", f"{there['killed']} killed", same),
        bar("Ray: CPU in tasks ÷ local", "≤ 1.5", ratio, ratio <= 1.5, "×"),
    ]


def rows_of_fleet(folder: Path) -> list[Any]:
    """Every row, in an order of its own."""
    with Fleet.open(folder) as fleet:
        return [
            fleet.query(f"SELECT * FROM {view} ORDER BY ALL").to_pylist()
            for view in ("jobs", "attempts", "job_hours", "days")
        ]


def add_views(report: Report, place: Path, chosen: Any) -> None:
    year = Path(chosen.year) if chosen.year else place
    if not (year / "fleet.db").exists():
        with Fleet.open(year) as fleet:
            write_year(fleet, chosen.year_jobs, chosen.days, LAST)
    found = fresh(views, folder=str(year))
    size = sum(path.stat().st_size for path in year.rglob("*") if path.is_file())
    with Fleet.open(year) as fleet:
        jobs = fleet.state.rows("SELECT sum(jobs) AS n FROM segments")[0]["n"]
    rows = [{"view": name, "cpu_ms": ms} for name, ms in found.items()]
    shown = [Column("view", "ett fleet …"), Column("cpu_ms", "CPU ms", "{:.0f}".format)]
    report.sheets.append(Sheet(f"{jobs:,} jobs, {chosen.days} days", shown, rows))
    slowest = max(found.values())
    report.bars += [
        bar("ls, newest 50", "≤ 100 ms CPU", found["ls"], found["ls"] <= 100, "ms"),
        bar("slowest view", "≤ 200 ms CPU", slowest, slowest <= 200, "ms"),
        bar("on disk", "≤ 2 GB a year of 3.6 M", size / 1e9, size / 1e9 <= 2 * jobs / 3.6e6, "GB"),
    ]


def add_live(report: Report, place: Path, chosen: Any) -> None:
    found = fresh(live, folder=str(place), jobs=chosen.live_jobs, looks=3)
    core = found["core"] * 1000 / found["jobs"]
    report.bars.append(
        bar(f"1,000 live jobs, a look every {LIVE_EVERY_S:g} s", "≤ 20% of a core", 100 * core,
            core <= 0.2, "%")
    )  # fmt: skip


def add_ship(report: Report, place: Path, chosen: Any) -> None:
    rows: list[Row] = []
    for way in ("as it is", "compressed"):
        found = ship(place / way, chosen.launchers, chosen.ranks, chosen.rounds, way != "as it is")
        rows.append({"way": way, **found})
        shutil.rmtree(place / way)
    columns = [
        Column("way", "bytes go"),
        Column("mib", "MiB", "{:.0f}".format),
        Column("sequential_mib_s", "one writer MiB/s", "{:.1f}".format),
        Column("shipped_mib_s", "shipped MiB/s", "{:.1f}".format),
        Column("server_ms_mib", "server's CPU ms a MiB", "{:.1f}".format),
        Column("same", "byte-identical"),
    ]
    title = f"{chosen.launchers} launchers × {chosen.ranks} ranks, all on one machine"
    report.sheets.append(Sheet(title, columns, rows))
    share = rows[0]["shipped_mib_s"] / rows[0]["sequential_mib_s"]
    report.bars.append(bar("acknowledged ÷ sequential", "≥ 50%", 100 * share, share >= 0.5, "%"))


def add_steps(report: Report, place: Path, chosen: Any) -> None:
    found = steps(place, chosen.windows)
    columns = [
        Column("steps", "steps", "{:,}".format),
        Column("step_ms", "ms a step", "{:.2f}".format),
        Column("windows", "windows of 3 s"),
        Column("slower", "slower %, fastest 90%", "{:+.2f}".format),
        Column("slower_from", "from", "{:+.2f}".format),
        Column("slower_to", "to", "{:+.2f}".format),
        Column("slower_all", "slower %, all", "{:+.2f}".format),
        Column("slower_all_from", "from", "{:+.2f}".format),
        Column("slower_all_to", "to", "{:+.2f}".format),
        Column("core", "of a core ships", "{:.2%}".format),
    ]
    report.sheets.append(Sheet("a trainer of one rank", columns, [found]))
    report.bars.append(
        # Met where noise cannot be the reason: the interval's end counts.
        bar("steps while they are shipped", "≤ 0.5% slower", found["slower"],
            found["slower_to"] <= 0.5, "%")
    )  # fmt: skip


def add_kills(report: Report, place: Path, chosen: Any) -> None:
    found = kills(place, chosen.kills)
    said = f"{found['server']} + {found['shippers']} kills, {found['mib']:.0f} MiB"
    report.bars.append(Bar("kill -9: byte-identical", "yes", said, found["same"]))


def _day(place: Path, chosen: Any) -> tuple[list[str], list[int]]:
    """The run folders of a day, and how many rank records each has."""
    folder = Path(chosen.day) if chosen.day else place / "runs"
    made, records = [], []
    for job in jobs_of_a_day(chosen.jobs):
        run = folder / job.name
        if not (run / "attempts-0.jsonl").exists():
            shutil.rmtree(run, ignore_errors=True)  # half written
            write_run(job, run, chosen.rows)
        records.append(job.ranks * job.attempts)
        made.append(str(run))
    return made, records


ADD = {"rollup": add_rollup, "ray": add_ray, "views": add_views, "live": add_live,
       "ship": add_ship, "steps": add_steps, "kills": add_kills}  # fmt: skip

if __name__ == "__main__":
    serve([rolled, by_sql, views, live])
    main()
