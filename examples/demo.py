"""The demo: one job, the same failures, with and without torchett; both ledgers and a page.

    ./dev demo             five failures in 3,000 steps: about five minutes on 2 cores
    ./dev demo --short     one failure in 400 steps: about a minute and a half

The runs stay in ett-runs, as `demo` and `demo-stock`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = Path(os.environ.get("ETT_RUNS") or "ett-runs")
PAGE = RUNS / "demo.html"
KEPT = {"demo": "torchett", "demo-stock": "stock"}  # run → side of the bench
NEXT = """
what to do next:
  ett report demo                    this report again; --html FILE makes a page of it
  ett compare demo-stock demo        which accounts moved, and by how much
  ett explain detect                 what a word means, and how to lower a loss
  ett run -- torchrun … train.py     your own job: no line of it has to change

{ett} is in {folder}: put it on your PATH, or call it as it stands here.
The page with both timelines: {page}"""


def main(words: list[str]) -> int:
    """The exit code of the bench."""
    if set(words) - {"--short"}:
        print("usage: ./dev demo [--short]", file=sys.stderr)
        return 2
    short = "--short" in words
    RUNS.mkdir(parents=True, exist_ok=True)
    took = "a minute and a half" if short else "five minutes"
    print(f"demo: takes about {took} on 2 cores, and prints how far it is", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".demo-", dir=RUNS) as folder:
        bench = ["bench", "--short" if short else "--quick", "--html", str(PAGE)]
        print(f"$ ett {' '.join(bench)}\n", flush=True)
        command = [sys.executable, "-m", "torchett", *bench, "--folder", folder]
        code = subprocess.run(command).returncode
        if code:
            return code
        for run, side in KEPT.items():
            shutil.rmtree(RUNS / run, ignore_errors=True)
            shutil.move(Path(folder) / side / "runs" / side, RUNS / run)
    print(f"\ndemo: took {time.monotonic() - began:.0f} s", flush=True)
    ett = Path(sys.executable).with_name("ett")
    print(NEXT.format(ett="ett", folder=ett.parent, page=PAGE))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
