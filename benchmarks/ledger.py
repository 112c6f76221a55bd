"""What it costs to account for a job, and whether the account is right.

CPU seconds of the accounting alone (the job is built before the clock starts), and the most
memory the process held beyond what it held after its imports: the job's own rows included. Each
figure comes from a fresh process. ml-goodput-measurement's GoodputCalculator.get_job_goodput gets
the entries its recorder would have written for the same job, handed over by a logger object that
keeps them in a list, as its tests do: what reading them from the cloud costs is left out.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from math import log
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from _table import Bar, Column, Report, Row, Sheet, bar, fresh, medians, options, peak_bytes, serve

THEIRS = "ml-goodput-measurement 0.2.3"


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of all threads, and what came back."""
    began = time.process_time_ns()
    found = work()
    return (time.process_time_ns() - began) / 1e9, found


# Ours, each in a process of its own ------------------------------------------------------------


def ours_rows(steps: int, restarts: int) -> Row:
    from _histories import Long

    from torchett.ledger import settle

    before = peak_bytes()
    history = Long(steps=steps, restarts=restarts).history()
    cpu, ledger = timed(lambda: settle(history))
    assert sum(ledger.accounts.values()) == ledger.rank_ns
    return {"cpu": cpu, "peak": peak_bytes() - before, "ett": ledger.ett_percent}


def ours_events(path: str) -> Row:
    from torchett.ledger import settle
    from torchett.runs import events

    before = peak_bytes()
    cpu, ledger = timed(lambda: settle(events.read(Path(path))))
    return {"cpu": cpu, "peak": peak_bytes() - before, "ett": ledger.ett_percent}


def ours_records(run: str) -> Row:
    from torchett.runs.reader import RunReader

    before = peak_bytes()
    reader = RunReader(Path(run))
    reading, _ = timed(reader.poll)
    settling, ledger = timed(reader.ledger)
    assert not reader.notes, reader.notes
    return {
        "cpu": reading + settling,
        "settling": settling,
        "peak": peak_bytes() - before,
        "ett": ledger.ett_percent,
    }


def ours_refresh(steps: int, restarts: int, events: int) -> Row:
    """Books of a live job that have been settled once: one more step, and settled again."""
    from _histories import Long

    from torchett.ledger import Batch, Books

    before = peak_bytes()
    long = Long(steps=steps, restarts=restarts, live=True)
    job = long.job()
    books = Books()
    books.post(Batch(rows=long.rows(), checkpoints=long.checkpoints()))
    books.settle(job)

    def refresh(batch: Batch) -> None:
        books.post(batch)
        books.settle(job)

    batches = [Batch(rows=long.next_row(k)) for k in range(events)]
    took = sorted(timed(partial(refresh, batch))[0] for batch in batches)
    return {
        "cpu": median(took),
        "p99": took[int(0.99 * len(took))],
        "most": took[-1],
        "peak": peak_bytes() - before,
    }


def ours_wide(ranks: int, attempts: int) -> Row:
    from _histories import Wide

    from torchett.ledger import settle

    before = peak_bytes()
    history = Wide(ranks=ranks, attempts=attempts).history()
    cpu, ledger = timed(lambda: settle(history))
    assert sum(ledger.accounts.values()) == ledger.rank_ns
    rows = len(history.rows)
    return {"cpu": cpu, "peak": peak_bytes() - before, "ett": ledger.ett_percent, "rows": rows}


# Theirs ----------------------------------------------------------------------------------------


def theirs_whole(steps: int, restarts: int) -> Row:
    from _cases import Kept
    from _histories import Long
    from ml_goodput_measurement.src.goodput import GoodputCalculator

    before = peak_bytes()
    with TemporaryDirectory() as cache:
        logger = Kept(list(Long(steps=steps, restarts=restarts).entries()))
        calculator = GoodputCalculator("bench", "bench", logger, cache_dir=cache)
        cpu, (percent, _, _) = timed(calculator.get_job_goodput)
    return {"cpu": cpu, "peak": peak_bytes() - before, "ett": percent}


def theirs_refresh(steps: int, restarts: int) -> Row:
    """One more entry after a first answer: it reads its whole timeline again."""
    from _cases import Kept
    from _histories import Long
    from ml_goodput_measurement.src.goodput import GoodputCalculator

    before = peak_bytes()
    with TemporaryDirectory() as cache:
        long = Long(steps=steps, restarts=restarts, live=True)
        logger = Kept(list(long.entries()))
        calculator = GoodputCalculator("bench", "bench", logger, cache_dir=cache)
        calculator.get_job_goodput()
        logger.entries.append(long.next_entry(0))
        cpu, _ = timed(calculator.get_job_goodput)
    return {"cpu": cpu, "peak": peak_bytes() - before}


# Files to read, made by a process that is not measured -----------------------------------------


def write_events(path: str, steps: int, restarts: int) -> Row:
    from _histories import Long

    from torchett.runs import events

    history = Long(steps=steps, restarts=restarts).history()
    with Path(path).open("w") as file:
        file.writelines(line + "\n" for line in events.write(history))
    return {}


def write_long(run: str, steps: int, restarts: int) -> Row:
    from _histories import Long

    Long(steps=steps, restarts=restarts).write_records(Path(run))
    return {}


def write_wide(run: str, ranks: int, attempts: int) -> Row:
    from _histories import Wide

    Wide(ranks=ranks, attempts=attempts).write_records(Path(run))
    return {}


def correctness() -> Row:
    """The eight cases: truth, ours, theirs."""
    from _cases import cases, ours, theirs

    found: list[Row] = []
    for case in cases():
        row = {"what": case.what, "asks": case.asks, "truth": case.truth, "ours": ours(case)}
        try:
            row["theirs"] = theirs(case)
            if any(one.recompiles for one in case.tries):
                row["told"] = theirs(case, told=True)
        except ModuleNotFoundError:
            row["theirs"] = "not installed"
        found.append(row)
    return {"cases": found}


CASES = (
    ours_rows,
    ours_events,
    ours_records,
    ours_refresh,
    ours_wide,
    theirs_whole,
    theirs_refresh,
    write_events,
    write_long,
    write_wide,
    correctness,
)


# The sheets ------------------------------------------------------------------------------------


class Bench:
    """The rounds of one run: every case is measured once a round, in turn."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self._jobs: dict[str, tuple[Callable[[], Row], list[Row], int]] = {}

    def add(self, key: str, case: Callable[..., Row], most: int = 99, **args: Any) -> None:
        """Measure `case` under `key`, in at most so many rounds (peers take minutes)."""
        self._jobs[key] = (lambda: fresh(case, **args), [], min(most, self.rounds))

    def run(self) -> dict[str, Row]:
        """A row for every key; for one that was not added, a row that says so."""
        for number in range(self.rounds):
            for work, found, rounds in self._jobs.values():
                if number < rounds:
                    found.append(work())
        found_all = {key: medians(found) for key, (_, found, _) in self._jobs.items()}
        return defaultdict(lambda: {"error": "not run with --quick"}, found_all)


def exponent(cost: dict[int, float]) -> float:
    """The slope of log cost over log size, by least squares: 1 is linear, 2 quadratic."""
    xs, ys = [log(size) for size in cost], [log(spent) for spent in cost.values()]
    mx, my = sum(xs) / len(xs), sum(ys) / len(ys)
    dots = sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True))
    return dots / sum((x - mx) ** 2 for x in xs)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=None, help="rounds (3; with --quick 1)")
    args = parser.parse_args()
    million = 100_000 if args.quick else 1_000_000
    restarts = 100 if args.quick else 1000
    ranks, attempts = (128, 6) if args.quick else (1024, 6)
    sizes = [million // 100, million // 10, million]
    bench = Bench(args.rounds or (1 if args.quick else 3))
    with TemporaryDirectory() as folder:
        for r in (5, restarts):
            fresh(write_events, path=f"{folder}/{r}.jsonl", steps=million, restarts=r)
            fresh(write_long, run=f"{folder}/{r}", steps=million, restarts=r)
            bench.add(f"events {r}", ours_events, most=3, path=f"{folder}/{r}.jsonl")
            bench.add(f"records {r}", ours_records, run=f"{folder}/{r}")
        fresh(write_wide, run=f"{folder}/wide", ranks=ranks, attempts=attempts)
        bench.add("wide", ours_wide, ranks=ranks, attempts=attempts)
        bench.add("wide records", ours_records, most=3, run=f"{folder}/wide")
        for n in sizes:
            bench.add(f"{n} × 5", ours_rows, steps=n, restarts=5)
            often = n * restarts // million
            bench.add(f"{n} often", ours_rows, steps=n, restarts=often)
            if not args.quick or n == million:  # importing them alone takes seconds
                bench.add(f"theirs {n} × 5", theirs_whole, most=1, steps=n, restarts=5)
            if not args.quick:
                bench.add(f"theirs {n} often", theirs_whole, most=1, steps=n, restarts=often)
        more = 200 if args.quick else 2000
        for r in (0, restarts):
            bench.add(f"refresh {r}", ours_refresh, events=more, steps=million, restarts=r)
        bench.add("theirs refresh", theirs_refresh, most=1, steps=million, restarts=0)
        found = bench.run()
    cases = fresh(correctness)["cases"]

    report = Report("ledger", facts={"rounds": f"rounds: {bench.rounds}"})
    report.sheets = [
        whole(found, million, restarts, ranks, attempts),
        linearity(found, sizes, restarts),
        refresh(found, million, restarts),
        right(cases),
    ]
    lanes = f"{ranks:,} ranks × {attempts} attempts"
    report.bars = bars(found, sizes, restarts, lanes, cases, full=not args.quick)
    report.show(args.json)


def seconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def megabytes(value: float) -> str:
    return f"{value / 1e6:.0f}"


def whole(found: dict[str, Row], million: int, restarts: int, ranks: int, attempts: int) -> Sheet:
    rows: list[Row] = []

    def line(job: str, by: str, key: str, than: str | None = None) -> None:
        row: Row = {"job": job, "by": by, **found[key]}
        if than and "cpu" in row:
            row["times"] = row["cpu"] / found[than]["cpu"]
        rows.append(row)

    for r, key in ((5, "× 5"), (restarts, "often")):
        job, base = f"{million:,} steps × {r} restarts", f"{million} {key}"
        line(job, "ours, rows", base)
        line("", "ours, flight records", f"records {r}", base)
        line("", "ours, events/1 file", f"events {r}", base)
        line("", THEIRS, f"theirs {million} {key}", base)
    lanes = ranks * attempts
    line(f"{ranks:,} ranks × {attempts} attempts", "ours, rows", "wide")
    line("", f"ours, {lanes:,} flight records", "wide records", "wide")
    columns = [
        Column("job", "job"),
        Column("by", "by"),
        Column("cpu", "CPU s", seconds),
        Column("times", "× ours", "{:.1f}".format),
        Column("peak", "peak MB over imports", megabytes),
        Column("ett", "ETT or goodput %", "{:.2f}".format),
    ]
    return Sheet("a whole job", columns, rows)


def linearity(found: dict[str, Row], sizes: list[int], restarts: int) -> Sheet:
    rows = []
    each = sizes[-1] // restarts
    for by, key in (
        ("ours, 5 restarts", "{} × 5"),
        (f"ours, a restart every {each:,} steps", "{} often"),
        (f"{THEIRS}, 5 restarts", "theirs {} × 5"),
        (f"{THEIRS}, a restart every {each:,} steps", "theirs {} often"),
    ):
        cost = {n: found[key.format(n)]["cpu"] for n in sizes if "cpu" in found[key.format(n)]}
        row: Row = {"by": by, **{str(n): spent for n, spent in cost.items()}}
        if len(cost) == len(sizes):
            row["exponent"] = exponent(cost)
            row["last"] = exponent({n: cost[n] for n in sizes[1:]})
        rows.append(row)
    columns = [
        Column("by", "by"),
        *(Column(str(n), f"{n:,} steps", "{:.4f} s".format) for n in sizes),
        Column("exponent", "exponent", "{:.2f}".format),
        Column("last", "of the last two", "{:.2f}".format),
    ]
    return Sheet("growth", columns, rows, note="exponent: the slope of log CPU over log steps")


def refresh(found: dict[str, Row], million: int, restarts: int) -> Sheet:
    rows: list[Row] = [
        {"by": "ours, one attempt", **found["refresh 0"]},
        {"by": f"ours, {restarts:,} restarts", **found[f"refresh {restarts}"]},
        {"by": f"{THEIRS}, one attempt", **found["theirs refresh"]},
    ]
    milli = [(key, lambda s: f"{1000 * s:,.2f}") for key in ("cpu", "p99", "most")]
    columns = [
        Column("by", "by"),
        *(Column(k, f"{k if k != 'cpu' else 'median'} ms", show) for k, show in milli),
        Column("peak", "peak MB over imports", megabytes),
    ]
    return Sheet(f"one more step after {million:,}", columns, rows)


def right(cases: list[Row]) -> Sheet:
    def shown(value: float | str) -> str:
        return value if isinstance(value, str) else f"{value:.1f}"

    columns = [
        Column("what", "case"),
        Column("asks", "asked for"),
        Column("truth", "truth", shown),
        Column("ours", "ours", shown),
        Column("theirs", THEIRS, shown),
    ]
    note = "ours is told `count=10` where ten steps are recorded at a time"
    for row in cases:
        if "told" in row:
            by_hand = "theirs if the recompile is told too, by hand, as a custom badput event"
            note += f"; {by_hand}: {shown(row['told'])}"
    return Sheet("eight cases", columns, cases, note=note)


def bars(
    found: dict[str, Row],
    sizes: list[int],
    restarts: int,
    lanes: str,
    cases: list[Row],
    full: bool,
) -> list[Bar]:
    """What was promised is promised for the full size: --quick only shows that it works."""
    million = sizes[-1]
    often = found[f"{million} often"]
    grows = max(
        exponent({n: found[f"{n} {key}"]["cpu"] for n in some})
        for key in ("× 5", "often")
        for some in (sizes, sizes[1:])
    )
    slow = 1000 * max(found[key]["cpu"] for key in ("refresh 0", f"refresh {restarts}"))
    wide = found["wide"]["cpu"]
    mega = often["peak"] / 1e6
    good = sum(abs(row["ours"] - row["truth"]) < 0.05 for row in cases)

    def held(met: bool) -> bool | None:
        return met if full else None

    job = f"{million:,} steps × {restarts:,} restarts"
    return [
        bar(f"CPU, {job}", "≤ 1 s", often["cpu"], held(often["cpu"] <= 1), "s"),
        bar(f"memory, {job}", "≤ 100 MB", mega, held(mega <= 100), "MB"),
        bar("growth with steps", "linear", grows, held(grows <= 1.05), "(exponent)"),
        bar("refresh, median", "≤ 5 ms", slow, held(slow <= 5), "ms"),
        bar(f"CPU, {lanes}, rows", "≤ 0.5 s", wide, held(wide <= 0.5), "s"),
        Bar("cases right", "8 of 8", f"{good} of {len(cases)}", good == len(cases) == 8),
    ]


if __name__ == "__main__":
    serve(CASES)
    main()
