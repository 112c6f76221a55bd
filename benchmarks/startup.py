"""Time to Start and Time to Recover: torchrun, `ett run`, and `ett run` with the script's levers.

    ./dev bench startup [--workload gpt|dlrm] [--preset tiny] [--ranks 2] [--kills 20]

The first two run the same stock script (examples/*/train.py) with the same torchrun options, the
third its train_ett.py; each side with a local compile cache of its own. The clock is outside: the
command's start, and the moments at which the script's lines arrive.

    command ────── "step 0" ── … ── "step k−1" ✗ kill ─────── "step k′" ── … ── "digest" ── exit
    ├ Time to Start ┤                        ├ Time to Recover ┤                   ├ exit ┤

Three starts a side. First: the local caches are empty, and so is the archive that `ett run` shares
between jobs. Fresh node: they are empty again, as on a node that never ran this job; the archive
holds what the first job published. Before each of the two, what Python has installed is taken out
of the kernel's page cache. Warm: the node has run the job before. The third side has no first
start of its own, unless the second is left out: it finds what that published.
"""

import os
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from _table import Column, Report, Row, Sheet, bar, options

from torchett.bench.side import make_even

ROOT = Path(__file__).resolve().parents[1]
STEP = re.compile(r"step (\d+) loss")
STOCK, SAME, LEVERS = "torchrun", "ett run", "ett run, train_ett.py"


@dataclass(slots=True)
class Job:
    """What was seen of one job."""

    start_s: float = 0.0
    recover_s: list[float] = field(default_factory=list)
    resumed_at: list[int] = field(default_factory=list)  # 0: there was no checkpoint yet
    exit_s: float = 0.0
    code: int = 0
    output: list[str] = field(default_factory=list)


def watch(command: Sequence[str], env: dict[str, str]) -> Job:
    """Run a job and time its lines."""
    job = Job()
    began = last = over = time.monotonic()
    expected = 0
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            now = time.monotonic()
            job.output.append(line)
            if line.startswith("digest"):  # the script's last line
                over = now
            found = STEP.match(line)
            if found is None:
                continue
            step = int(found[1])
            if expected == 0:
                job.start_s = now - began
            elif step < expected:  # it resumed from a checkpoint
                job.recover_s.append(now - last)
                job.resumed_at.append(step)
            expected, last = step + 1, now
        job.code = running.wait()
    job.exit_s = time.monotonic() - over
    return job


def forget_installation() -> int:
    """Have the kernel read the installed packages from the disk again; their files."""
    files = 0
    for folder, _, names in os.walk(sysconfig.get_paths()["purelib"]):
        for name in names:
            try:
                fd = os.open(os.path.join(folder, name), os.O_RDONLY)
            except OSError:
                continue
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
            files += 1
    return files


def train(side: str, args: Namespace, kills: int, cache: Path, shared: Path) -> Job:
    """One job of `kills` kills on one side; without any, from a disk that was not read yet."""
    if not kills:
        forget_installation()
    steps = args.between * (kills + 1) if kills else 30
    with tempfile.TemporaryDirectory() as folder:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        torchrun += ["--nproc-per-node", str(args.ranks), "--max-restarts", str(kills)]
        name = "train_ett.py" if side == LEVERS else "train.py"
        script = [str(ROOT / "examples" / args.workload / name), "--preset", args.preset]
        script += ["--without", "interval"]  # all save at the same steps
        script += ["--steps", str(steps), "--save-every", str(args.between // 3)]
        script += ["--log-every", "1", "--digest"]
        script += ["--checkpoint-dir", f"{folder}/checkpoints"]
        for kill in range(kills):
            # Not just after a checkpoint: something must be lost, or no resume is seen.
            at = args.between * (kill + 1) + args.between // 6
            script += ["--kill-at", f"{kill % args.ranks}:{at}"]
        ours = [sys.executable, "-m", "torchett.cli.main", "run", "--progress", "0"]
        ours += ["--compile-cache", str(shared)] + ["--standby-device"] * args.standby_device
        ours += [*["--standby-model"] * args.standby_model, "--"]
        env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache), "ETT_RUNS": f"{folder}/runs"}
        env["ETT_BYTECODE"] = f"{cache}-bytecode"
        return watch([*(ours if side != STOCK else []), *torchrun, *script], env)


def measure(side: str, args: Namespace, caches: Path) -> Row:
    """Starts, recoveries and exit of one side."""
    order, shared = (STOCK, SAME, LEVERS).index(side), caches / "shared"
    home, fresh = caches / f"home-{order}", caches / f"fresh-{order}"
    first = train(side, args, 0, home, shared) if not shared.exists() else None
    # To torchrun every node is fresh that has an empty cache, the first one too.
    on_fresh = train(side, args, 0, fresh, shared) if first is None or side != STOCK else first
    warm = train(side, args, args.kills, home if first else fresh, shared)
    jobs = [job for job in (first, on_fresh, warm) if job is not None]
    for job in jobs:
        resumed = zip(job.recover_s, job.resumed_at, strict=True)
        times = ", ".join(f"{t:.2f} (at step {step})" for t, step in resumed)
        said = f"{side}: start {job.start_s:.2f} s, recover [{times}] s, exit {job.exit_s:.2f} s"
        print(said, file=sys.stderr, flush=True)
        if job.code:
            raise SystemExit(f"{side} ended with {job.code}:\n{''.join(job.output[-30:])}")
    return {
        "side": side,
        "first_start_s": first.start_s if first else None,
        "fresh_start_s": on_fresh.start_s,
        "warm_start_s": warm.start_s,
        "recover_s": statistics.median(warm.recover_s) if warm.recover_s else None,
        "worst_s": max(warm.recover_s, default=None),
        "recoveries": len(warm.recover_s),
        "exit_s": statistics.median(job.exit_s for job in jobs),
        "all_recover_s": warm.recover_s,
        "resumed_at": warm.resumed_at,
    }


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--workload", choices=("gpt", "dlrm"), default="gpt")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--standby-device", action="store_true", help="as `ett run`'s")
    parser.add_argument("--standby-model", action="store_true", help="as `ett run`'s")
    parser.add_argument("--sides", nargs="+", choices=(SAME, LEVERS), default=(SAME, LEVERS))
    # Failures come hours apart; here far enough that a standby is ready again.
    parser.add_argument("--between", type=int, default=600, help="steps from kill to kill")
    args = parser.parse_args()
    if args.quick:
        args.kills = 3
    if not args.standby_device:
        make_even(on_gpu=False)
    with tempfile.TemporaryDirectory() as caches:
        stock, *ours = (measure(side, args, Path(caches)) for side in (STOCK, *args.sides))
    keys = ("first_start_s", "fresh_start_s", "warm_start_s", "recover_s", "worst_s", "exit_s")
    ratios: list[Row] = [
        {"side": f"torchrun ÷ {row['side']}"}
        | {key: stock[key] / row[key] for key in keys if stock[key] and row[key]}
        for row in ours
    ]
    titles = ("first start", "fresh node", "warm", "recover, median", "worst", "exit")
    columns = [Column("side", "")]
    columns += [Column(k, t, "{:.2f}".format) for k, t in zip(keys, titles, strict=True)]
    columns += [Column("recoveries", "recoveries", str)]
    report = Report("startup", facts={"job": f"{args.workload} {args.preset}, {args.ranks} ranks"})
    report.sheets = [Sheet("seconds (wall)", columns, [stock, *ours, *ratios])]
    for row, ratio in zip(ours, ratios, strict=True):
        name, won, fresh = row["side"], ratio.get("recover_s"), ratio.get("fresh_start_s")
        recover_s = row["recover_s"] or float("inf")
        report.bars += [
            bar(f"{name}: fresh start", "≥ 2.5×", fresh, bool(fresh and fresh >= 2.5), "×"),
            bar(f"{name}: Time to Recover", "≥ 4×", won, bool(won and won >= 4), "×"),
            bar(f"{name}: … in seconds", "≤ 3 s", recover_s, recover_s <= 3, "s"),
            bar(f"{name}: exit", "≤ 0.5 s", row["exit_s"], row["exit_s"] <= 0.5, "s"),
        ]
    report.show(args.json)


if __name__ == "__main__":
    main()
