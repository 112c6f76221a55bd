"""Every sharding × saved on n ranks × restored on m ranks, for n and m of 1 to 4.

Each pair ends "same" (every bit of model, optimizer, generators and loader), or "refused" where the
sharding is one that is refused. As many ranks as saved restore twice: from memory and from
storage. Prints a table; exits with 1 if any pair is neither.

usage: ./dev bench checkpoint_matrix [--json] [NAME …]
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests" / "levers" / "checkpoint"
sys.path.insert(0, str(TESTS))
os.environ["ETT_DISABLE"] = "1"
RANKS = (1, 2, 3, 4)
NEEDS = {"local_names": 2, "unnamed": 2, "local_names_fsdp2": 2}  # ranks, before names can collide


def cases(name: str, refused: bool) -> list[str]:
    """NAME:N:M for each pair that can be; first the same ranks, as memory is theirs for a while."""
    least = NEEDS.get(name, 1)
    saved = [n for n in RANKS if n >= least and not (name == "local_names_fsdp2" and n % 2)]
    return [
        f"{name}:{n}:{m}"
        for n in saved
        for m in ((n,) if refused else sorted(RANKS, key=lambda m: m != n))
    ]


def main(argv: list[str]) -> int:
    import importlib.util

    from shardings import REFUSED, SHARDINGS

    chosen = [name for name in argv if not name.startswith("--")] or [*SHARDINGS]
    if importlib.util.find_spec("torchdata") is None:
        chosen = [name for name in chosen if name != "torchdata"]
    rows, wrong = [], 0
    for name in chosen:
        wanted = cases(name, name in REFUSED)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ett-matrix-") as folder:
            command = [sys.executable, str(TESTS / "shardings.py"), folder, *wanted]
            done = subprocess.run(command, capture_output=True, text=True)
        ended = done.stdout.splitlines()
        good = len(ended) == len(wanted) and done.returncode == 0
        wrong += not good
        row = {
            "sharding": name,
            "outcome": "refused" if name in REFUSED else "same",
            "pairs": len(wanted),
            "good": len(ended),
            "seconds": round(time.monotonic() - began, 1),
        }
        rows.append(row)
        if "--json" not in argv:
            said = "" if good else "  " + (done.stderr.strip().splitlines() or ["?"])[-1][:200]
            print(
                f"{name:18} {row['outcome']:8} {row['good']:2} of {row['pairs']:2} pairs"
                f"  {row['seconds']:6.1f} s{said}",
                flush=True,
            )
    if "--json" in argv:
        print(json.dumps({"rows": rows}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
