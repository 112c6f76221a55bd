"""Kernels tuned once: how often each process of a job times one, counted beside our own record.

    ./dev bench pins         on a GPU; test_pins.py does it by Triton's interpreter

Four processes, one after the other, each under `ett run`, all with the same script: two Triton
kernels of a user's, called as they are, and a function whose kernels Inductor tunes.

    first       an empty cache folder: everything is tuned
    second      the folder that the first one left
    pins only   that folder without compiled code: of all it held, only the pins
    changed     one kernel's source has changed; the other keeps its pin

The script counts calls of the function with which Triton, and the one with which Inductor times a
kernel; `ett compile kernels` says what our record knows of them.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _table import Bar, Column, Report, Row, Sheet, gpu_name, options

HERE = Path(__file__).resolve().parent
PROCESSES = ("first", "second", "pins only", "changed")
SCRIPT = """
import sys
import torch, triton.testing
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

timed = {"triton": 0, "inductor": 0}
def counted(owner, name, what):
    original = getattr(owner, name)
    def counting(*args, **kwargs):
        timed[what] += 1
        return original(*args, **kwargs)
    setattr(owner, name, counting)
counted(triton.testing, "do_bench", "triton")
counted(CachingAutotuner, "bench", "inductor")

import _kernels
for rows, columns in ((2048, 1024), (1024, 2048)):
    x = torch.ones(rows, columns, device="cuda")
    y = _kernels.norm(x, torch.ones(columns, device="cuda"))
    z = _kernels.linear_swish(y, torch.ones(columns, 1024, device="cuda") / columns)
    assert abs(float(z.mean()) - 0.731) < 0.01, float(z.mean())

@torch.compile(options={"max_autotune_pointwise": True, "coordinate_descent_tuning": False})
def function(x):
    return torch.softmax(x.sin() * 2, -1).sum(0)
function(torch.ones(4096, 3000, device="cuda"))
torch.cuda.synchronize()
print("timed", timed["triton"], timed["inductor"])
"""


def only_pins(cache: Path) -> None:
    """Take everything else out of a cache folder."""
    for path in cache.iterdir():
        if path.name != "ett-pins":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def ett(folder: Path, *args: str) -> str:
    env = os.environ | {
        "ETT_RUNS": str(folder / "runs"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TRITON_CACHE_DIR": str(folder / "cache" / "triton"),
    }
    command = [sys.executable, "-m", "torchett.cli.main", *args]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"pins: {' '.join(args)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def process(name: str, folder: Path) -> Row:
    """One process of the script, and what was counted in it."""
    if name == "pins only":
        only_pins(folder / "cache")
    if name == "changed":
        kernels = folder / "_kernels.py"
        kernels.write_text(kernels.read_text().replace("/ columns + 1e-6", "/ columns + 1e-5"))
    job = name.replace(" ", "-")
    began = time.monotonic()
    said = ett(folder, "run", "--job", job, "--progress", "0", "--", str(folder / "train.py"))
    took_s = time.monotonic() - began
    line = next(line for line in said.splitlines() if line.startswith("timed "))
    by_triton, by_inductor = map(int, line.split()[1:])
    known = json.loads(ett(folder, "compile", "kernels", job, "--json"))
    return {
        "process": name,
        "triton": by_triton,
        "inductor": by_inductor,
        "recorded": known["benchmarks"],
        "pinned": known["pinned"],
        "tuning_s": sum(one["tuning_s"] for one in known["kernels"]),
        "wall_s": took_s,
    }


def main() -> None:
    args = options(__doc__ or "").parse_args()
    gpu = gpu_name()
    if not gpu:
        print("pins: expected a GPU that torch can use, found none", file=sys.stderr)
        raise SystemExit(2)
    with tempfile.TemporaryDirectory(prefix="ett-pins-") as scratch:
        folder = Path(scratch)
        shutil.copy(HERE / "_kernels.py", folder)
        (folder / "train.py").write_text(SCRIPT)
        rows = [process(name, folder) for name in PROCESSES]
    first, second, bare, changed = rows
    columns = [
        Column("process", "process"),
        Column("triton", "timed by Triton", "{:d}".format),
        Column("inductor", "by Inductor", "{:d}".format),
        Column("recorded", "recorded", "{:d}".format),
        Column("pinned", "pinned", "{:d}".format),
        Column("tuning_s", "tuning s", "{:.2f}".format),
        Column("wall_s", "wall s", "{:.1f}".format),
    ]
    report = Report("pins", facts={"device": gpu})
    report.sheets = [Sheet("timings of kernels", columns, rows)]
    again = [one["triton"] + one["inductor"] for one in (second, bare)]
    tuned = f"{first['triton']} + {first['inductor']}"
    report.bars = [
        Bar("a second process times", "nothing", f"{again[0]} (the first: {tuned})", not again[0]),
        Bar("… with the pins alone", "nothing", str(again[1]), not again[1]),
        Bar("a changed kernel", "tuned again", f"{changed['triton']} times", changed["triton"] > 0),
    ]
    report.show(args.json)


if __name__ == "__main__":
    main()
