"""Do jobs whose ranks have done their work end well? Two ranks in DDP, several jobs at a time.

    ./dev bench endings [--jobs 90] [--at-once 3]

    rank        last step │ destroy_process_group │ exit handlers │ the interpreter's teardown ✗
    gloo        ─────────────── lets go of the last all-reduce, late on a busy machine ────────┘

What gloo's thread lets go of is Python's; in a teardown torch answers that by SIGABRT, and torchrun
starts the whole job again, or fails it. Ranks of `ett run` end without a teardown.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from _table import Bar, Column, Report, Sheet, options

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
for _ in range(3):
    model(torch.zeros(4, 8)).sum().backward()
dist.destroy_process_group()
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ETT = [sys.executable, "-m", "torchett.cli.main", "run", "--progress", "0", "--"]
SIDES = {"torchrun": TORCHRUN, "ett run": [*ETT, *TORCHRUN]}


def at_once(command: list[str], jobs: int, folder: Path) -> list[str]:
    """How each of so many jobs ended: well, or by what torchrun says of its ranks."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [*command, str(folder / "script.py")], env=env | {"ETT_RUNS": str(folder / str(n))},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for n in range(jobs)
    ]  # fmt: skip
    ends = []
    for job in running:
        said = job.communicate()[1]
        why = "SIGABRT" if "(SIGABRT)" in said else f"exit {job.returncode}"
        ends.append(why if job.returncode else "well")
    return ends


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--jobs", type=int, default=90, help="of each side")
    parser.add_argument("--at-once", type=int, default=3, help="jobs that run at a time")
    args = parser.parse_args()
    jobs = 6 if args.quick else args.jobs
    ended: dict[str, Counter[str]] = {side: Counter() for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="ett-endings-") as scratch:
        folder = Path(scratch)
        (folder / "script.py").write_text(SCRIPT)
        for begun in range(0, jobs, args.at_once):
            for side, command in SIDES.items():  # in turn: the machine's hour is both sides'
                ended[side].update(at_once(command, min(args.at_once, jobs - begun), folder))
    rows = [
        {
            "side": side,
            "jobs": ends.total(),
            "aborted": ends["SIGABRT"],
            "else": ends.total() - ends["SIGABRT"] - ends["well"],
        }
        for side, ends in ended.items()
    ]
    columns = [
        Column("side", "side"),
        Column("jobs", "jobs of 2 ranks"),
        Column("aborted", "ended by SIGABRT"),
        Column("else", "failed otherwise"),
    ]
    ours = ended["ett run"].total() - ended["ett run"]["well"]
    report = Report("endings", facts={"at once": f"{args.at_once} jobs at a time"})
    report.sheets = [Sheet("jobs whose ranks have done their work", columns, rows)]
    report.bars = [Bar("ett run: jobs that failed at their end", "0", str(ours), ours == 0)]
    report.show(args.json)


if __name__ == "__main__":
    main()
