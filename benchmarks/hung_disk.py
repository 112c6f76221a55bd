"""A run folder on a file system that answers nothing for a minute: what does a job feel of it?

    ranks        s s s s s s s s s s s s s s s s s s s s      a stopwatch around each step
    run folder   ────────────┤ hangs for 60 s ├──────────

Two ranks under `ett run -- torchrun`, with an all-reduce in each step, record to a file system in
memory (FUSE) that stops answering. Needs root and /dev/fuse.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles

from _table import Column, Report, Sheet, bar, options

BEFORE_S = 10.0
SCRIPT = """
import json, sys, time
import torch, torch.distributed as dist
import torchett as ett
ett.init()
dist.init_process_group("gloo")
rank, took, until = dist.get_rank(), [], time.monotonic() + float(sys.argv[2])
go = torch.ones(1)
step = 0
while True:
    began = time.monotonic()
    with ett.step(step):
        with ett.stage("x-work"):
            torch.ones(64, 64) @ torch.ones(64, 64)
        go[0] = float(time.monotonic() < until)
        dist.all_reduce(go, op=dist.ReduceOp.MIN)
        time.sleep(0.002)
    took.append((began, time.monotonic() - began))
    step += 1
    if not go[0]:
        break
with open(f"{sys.argv[1]}/took-{rank}.json", "w") as file:
    json.dump(took, file)
dist.destroy_process_group()
"""


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--seconds", type=float, default=None, help="60; --quick: 15")
    args = parser.parse_args()
    hang_s = args.seconds or (15.0 if args.quick else 60.0)
    with tempfile.TemporaryDirectory() as folder:
        mount = Path(folder) / "mount"
        mount.mkdir()
        (Path(folder) / "train.py").write_text(SCRIPT)
        disk = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("_hanging_disk.py")), str(mount)],
            env=os.environ | {"HANG_S": str(hang_s)},
            stdout=subprocess.PIPE,
        )
        assert disk.stdout is not None
        if b"mounted" not in disk.stdout.readline():
            raise SystemExit(1)
        try:
            _measure(args.json, Path(folder), mount, disk, hang_s)
        finally:
            ctypes.CDLL(None).umount2(str(mount).encode(), 2)
            disk.kill()
            disk.wait()


def _measure(
    as_json: bool, folder: Path, mount: Path, disk: "subprocess.Popen[bytes]", hang_s: float
) -> None:
    from torchett.runs.reader import RunReader

    ett = [sys.executable, "-m", "torchett.cli.main", "run", "--job", "hung", "--progress", "5"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    lasts, script = hang_s + 2 * BEFORE_S, folder / "train.py"
    job = subprocess.Popen(
        [*ett, "--", *torchrun, "--nproc-per-node=2", *map(str, (script, folder, lasts))],
        env=os.environ | {"ETT_RUNS": str(mount), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(mount.glob("hung/attempt-0/rank-1.ett")) and job.poll() is None:
        time.sleep(0.1)
    time.sleep(BEFORE_S)
    began = time.monotonic()
    disk.send_signal(signal.SIGUSR1)
    _, said = job.communicate(timeout=lasts + 240)
    reader = RunReader(mount / "hung").poll()
    rows = reader.history().rows
    known = int(rows.count[rows.is_step].sum())
    took = [json.loads((folder / f"took-{rank}.json").read_text()) for rank in range(2)]
    inside = [s for one in took for at, s in one if began <= at < began + hang_s]
    outside = [s for one in took for at, s in one if not began - 1 <= at < began + hang_s + 1]
    table = []
    for what, times in (("while it hangs", inside), ("otherwise", outside)):
        cut = quantiles(times, n=1000)
        row = {"what": what, "steps": len(times), "median": cut[499], "p99": cut[989]}
        table.append(row | {"worst": max(times)})
    done = sum(map(len, took))
    milli = "{:.2f}".format
    columns = [
        Column("what", "a step"),
        Column("steps", "steps", "{:,}".format),
        *(
            Column(key, f"{key}, ms", lambda s: milli(1e3 * s))
            for key in ("median", "p99", "worst")
        ),
    ]
    report = Report("hung_disk", facts={"hangs": f"{hang_s:.0f} s"})
    report.sheets = [Sheet("steps", columns, table)]
    ratio = table[0]["median"] / table[1]["median"]  # type: ignore[operator]
    ended = said.count("no sign of life") + max(job.returncode, -job.returncode)
    report.bars = [
        bar("median step, against otherwise", "within 10%", ratio, abs(ratio - 1) < 0.1, "×"),
        bar("ranks ended, or exit status", "0", ended, ended == 0, ""),
        bar("steps done and not in the record", "0", done - known, done == known, ""),
        bar("attempts", "1", len(reader.job.attempts), len(reader.job.attempts) == 1, ""),
    ]
    report.show(as_json)
    if reader.notes or ended:
        print(*reader.notes, said, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
