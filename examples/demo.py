"""The demo: a small GPT on two ranks, one of them killed on the way, and the report of it all."""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEPS, KILL_AT = 1200, "1:690"


def main() -> int:
    """The exit code of the report, or of the training if that failed."""
    runs = Path(os.environ.get("ETT_RUNS") or "ett-runs")
    job = f"demo-{os.getpid()}"
    ett = (sys.executable, "-m", "torchett.cli.main")
    with tempfile.TemporaryDirectory(prefix="ett-demo-") as folder:
        train = (
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "--max-restarts", "2", str(HERE / "gpt" / "train_ett.py")),
            *("--steps", str(STEPS), "--save-every", "100", "--log-every", "200"),
            *("--checkpoint-dir", folder, "--kill-at", KILL_AT),
        )
        launch = (*ett, "run", "--job", job, "--progress", "10", "--", *train)
        print(f"$ ett run -- torchrun {shlex.join(train[4:])}\n", flush=True)
        trained = subprocess.run(launch, env=os.environ | {"ETT_RUNS": str(runs)}).returncode
    if trained:
        print(f"demo: the training ended with {trained}: see the lines above", file=sys.stderr)
        return trained
    print(f"\n$ ett report {runs / job}\n", flush=True)
    return subprocess.run((*ett, "report", str(runs / job))).returncode


if __name__ == "__main__":
    raise SystemExit(main())
