"""Versions a minute and core: ours beside `torch.save` + MLflow's `log_model`.

    python benchmarks/publish_mlflow.py [--jobs 40] [--python PYTHON] [--only PART …] [--json]

PYTHON has torch and mlflow (not mlflow-skinny); default: this one. All ways publish the same DLRMs
in one process with one thread, and what is counted is its CPU time, imports included.

    log_model, stated   torch.save, then log_model into a SQLite store with its requirements given
    log_model           the same as a user types it: MLflow finds the requirements out by itself
    weights             `ett publish work`, recipe with compiled=False: anchor read and checked,
                        examples answered, registered
    code                the same with compiled code from the cache, and the parity gate

MLflow's side has the model in memory; ours reads each anchor from its checkpoint.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _publish_cases import RECIPES, ROOT, Place, save_anchors
from _table import Column, Report, Sheet, options

PEER = """
import os, sys, time
sys.path.insert(0, {examples!r})
import torch
import mlflow, mlflow.pytorch
from dlrm.model import DLRM, PRESETS

torch.set_num_threads(1)
folder, count, stated = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "stated"
mlflow.set_tracking_uri("sqlite:///" + folder + "/store.db")
mlflow.set_experiment("peer")
more = {{"pip_requirements": ["torch"]}} if stated else {{}}
for seed in range(count):
    torch.manual_seed(seed)
    model = DLRM(PRESETS["tiny"]).eval()
    with mlflow.start_run():
        torch.save(model.state_dict(), folder + "/checkpoint.pt")
        # The default of MLflow 3.17, pt2, wants an example to export; pickles are what it had.
        mlflow.pytorch.log_model(
            model, name="model", registered_model_name="dlrm", serialization_format="pickle", **more
        )
print(len(mlflow.search_model_versions(filter_string="name='dlrm'")))
"""
PARTS = ("log_model, stated", "log_model", "weights", "code")


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(command: list[str], env: dict[str, str], cwd: Path) -> tuple[str, dict[str, float]]:
    """What a process printed, and its wall clock and CPU seconds."""
    before, began = cpu_s(), time.monotonic()
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True)
    took = {"s": time.monotonic() - began, "cpu_s": cpu_s() - before}
    if done.returncode:
        raise SystemExit(f"publish_mlflow: {' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout, took


def peer(folder: Path, python: str, jobs: int, how: str) -> dict[str, Any]:
    folder.mkdir()
    script = folder / "peer.py"
    script.write_text(PEER.format(examples=str(ROOT / "examples")))
    env = os.environ | {"OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
    said, took = timed([python, str(script), str(folder), str(jobs), how], env, folder)
    return {"versions": int(said.split()[-1]), **took}


def ours(place: Place, anchors: list[str], recipe: str, name: str) -> dict[str, Any]:
    spool = str(place.folder / f"spool-{name}")
    for anchor in anchors:
        place.drop(anchor, f"{RECIPES}:{recipe}", name, spool=spool)
    command = [sys.executable, "-m", "torchett.cli.main", "publish", "work", spool, "--drain"]
    _, took = timed(command, place.env | {"OMP_NUM_THREADS": "1"}, place.folder)
    return {"versions": len(place.versions(name)), **took}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--python", default=sys.executable, help="has torch and mlflow")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    args = parser.parse_args()
    report = Report("publish_mlflow")
    base = Path(tempfile.mkdtemp(prefix="ett-bench-mlflow-"))
    try:
        place = Place(base)
        anchors = save_anchors(base / "anchors", range(args.jobs + 1))
        rows = []
        for part in args.only:
            if part.startswith("log_model"):
                stated = "stated" if "stated" in part else "found out"
                found = peer(base / stated.replace(" ", "-"), args.python, args.jobs, stated)
            elif part == "weights":
                found = ours(place, anchors[1:], "tiny_weights", "weights")
            else:
                ours(place, anchors[:1], "tiny", "warm")  # compiles the code
                found = ours(place, anchors[1:], "tiny", "code")
            if found["versions"] != args.jobs:
                raise SystemExit(f"publish_mlflow: {part}: {json.dumps(found)}")
            each = found["cpu_s"] / args.jobs
            rows.append({"way": part, **found, "each": each, "per_minute": 60 / each})
        columns = [
            Column("way", "way"),
            Column("versions", "versions"),
            Column("s", "seconds", "{:.1f}".format),
            Column("cpu_s", "CPU s", "{:.1f}".format),
            Column("each", "CPU s a version", "{:.2f}".format),
            Column("per_minute", "a minute and core", "{:.0f}".format),
        ]
        report.sheets.append(Sheet(f"{args.jobs} DLRMs, one process, one thread", columns, rows))
        report.show(args.json)
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
