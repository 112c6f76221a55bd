"""The same job on one GPU, stock and with torchett, through schedules written down beforehand.

    ./dev bench h200_ett [--schedule ranks mixed bunched] [--steps N] [--folder DIR]

Each side of each schedule is a job of its own, from its first start with empty caches to its exit,
of so many steps that stock stays under nine minutes on a slow day. With --folder what is done is
not done again: a command that is cut off goes on from there.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _table import Bar, Column, Report, Row, Sheet, options

STEPS = {"ranks": 18_500, "mixed": 25_000, "bunched": 23_000}


def compared(schedule: str, size: str, steps: int, folder: Path) -> dict[str, Any]:
    """What `ett bench` says of one schedule."""
    command = [sys.executable, "-m", "torchett.cli.main", "bench", f"--{size}", "--json"]
    command += ["--schedule", schedule, "--folder", str(folder / schedule), "--steps", str(steps)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"h200_ett: '{schedule}' ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row(schedule: str, side: str, found: dict[str, Any]) -> Row:
    ledger = found[side]["ledger"]
    return {
        "schedule": schedule,
        "side": side,
        "ett_percent": ledger["ett_percent"],
        "wall_s": ledger["window_s"],
        "wasted_s": found[side]["wasted_s"],
        "failures": sum(ledger["failures"].values()),
        "start_s": ledger["time_to_start_s"],
        "recover_s": statistics.fmean(ledger["time_to_recover_s"] or [0.0]),
        "step_ms": 1e3 * ledger["accounts"]["effective"] / found["steps"] / found["ranks"],
        "pulse_ms": 1e3 * (found[side]["pulse_s"] or 0.0),
        "weights": (found[side]["digest"] or "?")[:8],
        **ledger["accounts"],
    }


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--schedule", nargs="*", choices=STEPS, default=list(STEPS))
    parser.add_argument("--size", choices=("h200", "quick"), default="h200", help="of the job")
    parser.add_argument("--steps", type=int, help="of each job")
    parser.add_argument("--folder", type=Path, help="keep runs here and go on from them")
    args = parser.parse_args()
    given = args.steps or (400 if args.quick else None)
    with tempfile.TemporaryDirectory(prefix="ett-h200-") as scratch:
        folder = args.folder or Path(scratch)
        found = {
            name: compared(name, args.size, given or STEPS[name], folder) for name in args.schedule
        }
    rows = [row(name, side, one) for name, one in found.items() for side in ("stock", "torchett")]
    fixed = {"schedule", "side", "ett_percent", "wall_s", "wasted_s", "failures"}
    fixed |= {"start_s", "recover_s", "step_ms", "pulse_ms", "weights"}
    accounts = sorted(
        {key for one in rows for key in one} - fixed,
        key=lambda key: -sum(one.get(key, 0.0) for one in rows),
    )
    seconds = "{:.1f}".format
    columns = [
        Column("schedule", "schedule"),
        Column("side", "side"),
        Column("ett_percent", "ETT %", seconds),
        Column("wall_s", "wall s", seconds),
        Column("wasted_s", "not training, rank-s", seconds),
        Column("failures", "failures", str),
        Column("start_s", "to start", seconds),
        Column("recover_s", "to recover", seconds),
        Column("step_ms", "step ms", seconds),
        Column("pulse_ms", "a fixed loop ms", "{:.2f}".format),
        Column("weights", "digest of weights"),
    ]
    job = next(iter(found.values()))["workload"]
    steps = ", ".join(f"{one['steps']:,} in '{name}'" for name, one in found.items())
    report = Report("h200_ett", facts={"job": f"{job}, steps: {steps}", "size": args.size})
    names = [Column("schedule", "schedule"), Column("side", "side")]
    report.sheets = [
        Sheet("sides", columns, rows),
        Sheet("accounts, rank-s", [*names, *(Column(a, a, seconds) for a in accounts[:9])], rows),
    ]
    for name, one in found.items():
        ett, saved = one["torchett"]["ledger"]["ett_percent"], one["saved_percent"]
        longer = max(one[side]["ledger"]["window_s"] for side in ("stock", "torchett"))
        report.bars += [
            Bar(f"{name}: ETT", "≥ 90%", f"{ett:.1f}%", ett >= 90),
            Bar(f"{name}: fewer non-effective s", "≥ 70%", f"{saved:.1f}%", saved >= 70),
            Bar(f"{name}: the longer side", "≤ 540 s", f"{longer:.1f} s", longer <= 540),
        ]
    report.show(args.json)


if __name__ == "__main__":
    main()
