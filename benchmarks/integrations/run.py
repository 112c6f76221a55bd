"""Programs by others under `ett run`, unmodified: are their steps and their seconds told right?

    python benchmarks/integrations/run.py --source DIR [--only NAME …] [--quick] [--json]

DIR holds checkouts, as they are: nanoGPT (karpathy), examples (pytorch), dlrm (facebookresearch),
transformers (huggingface). Packages that a program needs are looked for in this interpreter;
programs whose checkout or packages are missing are listed with what is missing.

steps          as the program counts them itself, and as the hooks recognised them (every rank)
unexplained    unattributed + other_in_loop, of all rank-seconds; a bar in runs of at least 60 s
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _table import Column, Report, Row, Sheet, bar, options  # noqa: E402
from programs import NOT_RUN, PROGRAMS, Program  # noqa: E402

LONG_S = 60.0
MOST_UNEXPLAINED = 10.0
SHOWN = 6  # accounts in the table


def missing(program: Program, source: Path) -> str | None:
    """What keeps a program from running; None if nothing does."""
    if program.folder and not (source / program.folder).is_dir():
        return f"no checkout: {program.folder}"
    gone = [name for name in program.modules if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(gone)}" if gone else None


def run(program: Program, source: Path, work: Path, long: bool) -> Row:
    """What `ett run` told of the program, and what the program said itself."""
    folder = work / "".join(c if c.isalnum() else "_" for c in program.name)
    if program.folder:
        shutil.copytree(source / program.folder, folder)
    else:
        folder.mkdir()
    program.prepare(folder)
    env = {k: v for k, v in os.environ.items() if not k.startswith("ETT_")}
    path = [str(ROOT / "src"), str(folder), env.get("PYTHONPATH", "")]
    env |= {"PYTHONPATH": os.pathsep.join(path), "ETT_RUNS": str(folder / "ett-runs")}
    env |= {"PYTHONUNBUFFERED": "1", **program.env}
    env.setdefault("OMP_NUM_THREADS", "1")
    ett = [sys.executable, "-m", "torchett.cli.main"]
    command = [*ett, "run", "--job", "job", "--progress", "0", "--", *program.command(long)]
    done = subprocess.run(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    row: Row = {"program": program.name}
    if done.returncode:
        row["why"] = f"ended with {done.returncode}: " + " ".join(done.stdout.split()[-40:])
        return row
    told = subprocess.run(
        [*ett, "report", "job", "--json"], cwd=folder, env=env, capture_output=True, text=True
    )
    ledger = json.loads(told.stdout)
    accounts: dict[str, float] = ledger["accounts"]
    whole = ledger["rank_seconds"]
    lost = accounts.get("unattributed", 0.0) + accounts.get("other_in_loop", 0.0)
    largest = sorted(accounts.items(), key=lambda item: -item[1])[:SHOWN]
    return row | {
        "truth": program.truth(done.stdout),
        "steps": steps_of_each_rank(ett, folder, env, program.ranks),
        "ranks": ledger["ranks"],
        "expected_ranks": program.ranks,
        "window_s": ledger["window_s"],
        "ett_percent": ledger["ett_percent"],
        "unexplained": 100 * lost / whole if whole else 0.0,
        "accounts": ", ".join(f"{name} {100 * s / whole:.1f}%" for name, s in largest),
        "notes": ledger.get("notes", []),
    }


def steps_of_each_rank(ett: list[str], folder: Path, env: dict[str, str], ranks: int) -> list[int]:
    """How many steps each rank recorded."""
    reading = (
        "import sys, json; from pathlib import Path; from torchett.runs.reader import RunReader\n"
        "rows = RunReader(Path(sys.argv[1])).poll().history().rows\n"
        "print(json.dumps([int(rows.count[rows.is_step & (rows.rank == r)].sum())"
        " for r in range(int(sys.argv[2]))]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", reading, "ett-runs/job", str(ranks)],
        cwd=folder, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    counts: list[int] = json.loads(found.stdout)
    return counts


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--source", type=Path, required=True, help="the folder of checkouts")
    parser.add_argument("--only", nargs="*", default=[], help="programs whose names contain this")
    parser.add_argument("--work", type=Path, help="keep the runs in this folder")
    given = parser.parse_args()
    source = given.source.resolve()
    report = Report("integrations")
    rows: list[Row] = []
    absent: list[Row] = [{"program": name, "why": why} for name, why in NOT_RUN.items()]
    with tempfile.TemporaryDirectory(prefix="ett-integrations-") as folder:
        work = (given.work or Path(folder)).resolve()
        work.mkdir(exist_ok=True)
        for program in PROGRAMS:
            if given.only and not any(part in program.name for part in given.only):
                continue
            why = missing(program, source)
            row = {"program": program.name, "why": why}
            if why is None:
                print(f"{program.name} …", file=sys.stderr, flush=True)
                row = run(program, source, work, not given.quick)
            (absent if "why" in row else rows).append(row)
    for row in rows:
        right = row["steps"] == [row["truth"]] * row["expected_ranks"] and row["truth"] > 0
        row["right"] = "yes" if right else "NO"
        report.bars.append(
            bar(f"{row['program']}: steps", f"{row['truth']}", min(row["steps"]), right, "steps")
        )
        if row["window_s"] >= LONG_S:
            share = row["unexplained"]
            met = share <= MOST_UNEXPLAINED
            report.bars.append(
                bar(f"{row['program']}: unexplained", f"≤ {MOST_UNEXPLAINED:g}%", share, met, "%")
            )
    columns = [
        Column("program", "program"),
        Column("truth", "steps", lambda n: f"{n:,}"),
        Column("steps", "recognised", lambda ns: " ".join(f"{n:,}" for n in ns)),
        Column("window_s", "wall", lambda s: f"{s:.0f} s"),
        Column("ett_percent", "ETT", lambda p: f"{p:.1f}%"),
        Column("unexplained", "unexplained", lambda p: f"{p:.1f}%"),
        Column("accounts", "largest accounts"),
    ]
    report.sheets.append(Sheet("programs by others, unmodified", columns, rows))
    why_not = [Column("program", "program"), Column("why", "why not")]
    report.sheets.append(Sheet("not run", why_not, absent))
    report.show(given.json)
    raise SystemExit(any(row["right"] != "yes" for row in rows))


if __name__ == "__main__":
    main()
