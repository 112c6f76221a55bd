"""The demo: one job, the same failures, with and without torchett; both ledgers and a page."""

import os
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """The exit code of the bench."""
    page = Path(os.environ.get("ETT_RUNS") or "ett-runs") / "demo.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    words = ["bench", "--quick", "--html", str(page)]
    print(f"$ ett {' '.join(words)}\n", flush=True)
    done = subprocess.run([sys.executable, "-m", "torchett.cli.main", *words])
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
