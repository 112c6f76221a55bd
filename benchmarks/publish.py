"""Publishing: seconds that devices are held, republishing, loading, kills, memory, many jobs.

    python benchmarks/publish.py                         all but --limit
    python benchmarks/publish.py --only ways load        some of it
    python benchmarks/publish.py --only ways --ranks 2   tables sharded by TorchRec
    python benchmarks/publish.py --only kills --kills 50
    python benchmarks/publish.py --only many --jobs 200 --engine both
    python benchmarks/publish.py --only limit --limit-mb 768       needs a cgroup (v1) of its own

`ways` trains a DLRM twice under `ett run` and reads the shutdown accounts from the ledger: once it
publishes while the devices are held, once it drops a job for a CPU worker. The first publish has
no compiled code to use; the second, of other weights, finds it in the registry.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _publish_cases import (
    RECIPES,
    ROOT,
    Place,
    cold_load,
    every_batch,
    kill_workers,
    memory_limit,
    save_anchors,
    train,
    worker,
)
from _table import Column, Report, Sheet, bar, fresh, options, serve

_SHUTDOWN = ("final_checkpoint", "publish", "teardown")
PARTS = ("ways", "load", "batches", "kills", "many", "limit")


def ways(place: Place, report: Report, preset: str, steps: int, ranks: int) -> None:
    """Both ways of publishing in one run, from the ledger."""
    recipe = f"{RECIPES}:{preset}"
    train(place, "held", "in-trainer", preset=preset, steps=steps, seed=0, ranks=ranks)
    train(place, "given-back", "standalone", preset=preset, steps=steps, seed=1, ranks=ranks)
    train(place, "given-back-2", "standalone", preset=preset, steps=steps, seed=2, ranks=ranks)
    began = time.monotonic()
    place.ett("publish", "work", place.spool, "--drain", "--poll", "0.1")
    republish_s = time.monotonic() - began
    rows = []
    for job in ("held", "given-back"):
        told = place.report(job)
        accounts = told["accounts"]
        shutdown = {
            key: accounts.get(key, 0.0) for key in ("final_checkpoint", "publish", "teardown")
        }
        rows.append({"job": job, **shutdown, "all": sum(shutdown.values())})
        rows[-1]["said"] = next((s for s in told["asides"] if s.startswith("published")), "")
    seconds = [Column(key, key, _s) for key in (*_SHUTDOWN, "all")]
    columns = [Column("job", "devices"), *seconds, Column("said", "report")]
    report.sheets.append(Sheet("shutdown, rank-seconds from the ledger", columns, rows))
    freed = rows[-1]
    over = (freed["all"] - freed["final_checkpoint"]) / ranks
    report.bars.append(bar("devices back after the anchor's commit", "≤ 5 s", over, over <= 5, "s"))
    versions = place.versions(f"dlrm-{preset}")[:3]
    first, again, next_one = (version["timings"] for version in versions)
    table = [
        {"step": s, "first": first.get(s), "again": again.get(s), "next": next_one.get(s)}
        for s in first
    ]
    table.append({"step": "worker of both, from start to exit", "again": republish_s})
    columns = [
        Column("step", "step"),
        Column("first", "first", _s),
        Column("again", "again, worker just begun", _s),
        Column("next", "next, worker runs", _s),
    ]
    report.sheets.append(Sheet(f"publishing {recipe.rpartition('/')[2]}, seconds", columns, table))
    ratios = [again["all"] / first["all"], next_one["all"] / first["all"]]
    report.bars += [
        bar(
            "two weights-only republishes, process included",
            "≤ 15 s",
            republish_s,
            republish_s <= 15,
            "s",
        ),
        bar("… of the first, worker just begun", "≤ 1/10", ratios[0], ratios[0] <= 0.1, "×"),
        bar("… of the first, worker runs", "≤ 1/10", ratios[1], ratios[1] <= 0.1, "×"),
    ]


def load(place: Place, report: Report, preset: str) -> None:
    """Loading with every cache cold."""
    snapshot = place.folder / "snapshot"
    if not snapshot.exists():
        place.ett("publish", "fetch", f"dlrm-{preset}", str(snapshot))
    rounds = [cold_load(snapshot) for _ in range(5)]
    rows = [{"round": n, **one} for n, one in enumerate(rounds)]
    columns = [
        Column("round", "round"),
        Column("import_s", "import torch", _s),
        Column("load_s", "load", _s),
    ]
    report.sheets.append(Sheet("a fresh process, caches cold, seconds", columns, rows))
    worst = max(one["load_s"] for one in rounds)
    report.bars.append(bar("cold load over importing torch", "≤ 2.5 s", worst, worst <= 2.5, "s"))


def batches(place: Place, report: Report, preset: str, each: int) -> None:
    """Every batch size against the trained model; then what must be refused."""
    found = fresh(every_batch, snapshot=str(place.folder / "snapshot"), most=4096, each=each)
    rows = [{"refused": line} for line in found["refused"]]
    title = f"{found['batches']} batch sizes of 1 to 4096: off by {found['max_error']:.2g} at most"
    report.sheets.append(Sheet(title, [Column("refused", "refused")], rows))
    right = found["max_error"] <= 1e-5 and len(found["refused"]) == 3
    report.bars.append(bar("batches 1 to 4096", "≤ 1e-5", found["max_error"], right, ""))


def kills(place: Place, report: Report, count: int) -> None:
    """Workers killed at random moments, two on each job."""
    anchors = save_anchors(place.folder / "killed", range(1 + max(2, count)))
    found = kill_workers(place, anchors, f"{RECIPES}:tiny_weights", count)
    columns = [Column(key, key) for key in found]
    report.sheets.append(Sheet("workers killed at random moments", columns, [found]))
    bad = found["half"] + found["twice"] + found["bad_alias"] + found["unfinished"]
    met = bad == 0 and found["kills"] >= count
    what = f"half, twice, bad alias or unfinished after {found['kills']} kills"
    report.bars.append(bar(what, "0", float(bad), met, ""))


def many(place: Place, report: Report, jobs: int, engine: str, workers: int, recipe: str) -> None:
    """Many jobs by several workers, and by Ray: the same versions."""
    anchors = save_anchors(place.folder / "many", range(jobs))
    rows: list[dict[str, Any]] = []
    keys: dict[str, set[str]] = {}
    for one in ("here", "ray") if engine == "both" else (engine,):
        spool, registry = (str(place.folder / f"{kind}-{one}") for kind in ("spool", "registry"))
        if (Path(place.registry) / "code").exists():
            shutil.copytree(Path(place.registry) / "code", Path(registry) / "code")
        for anchor in anchors:
            place.drop(anchor, recipe, "many", spool=spool, registry=registry)
        began = time.monotonic()
        if one == "here":
            for process in [worker(place, spool) for _ in range(workers)]:
                process.wait()
        else:
            words = ("--engine", "ray", "--tasks", str(workers))
            place.ett("publish", "work", spool, "--drain", *words)
        took = time.monotonic() - began
        from torchett.levers.publish.registry.registry import Registry

        versions = list(Registry(registry).model("many").versions())
        keys[one] = {version.key for version in versions}
        per_minute = 60 * len(versions) / took
        rows.append({"engine": one, "versions": len(versions), "s": took, "per_minute": per_minute})
    columns = [
        Column("engine", "engine"), Column("versions", "versions"), Column("s", "seconds", _s),
        Column("per_minute", "a minute", _s),
    ]  # fmt: skip
    title = f"{jobs} jobs of {recipe.rpartition(':')[2]}, {workers} workers"
    report.sheets.append(Sheet(title, columns, rows))
    same = len({frozenset(found) for found in keys.values()}) == 1
    right = same and all(row["versions"] == jobs for row in rows)
    report.bars.append(
        bar("versions, the same by each engine", str(jobs), len(keys[rows[0]["engine"]]), right, "")
    )


def limit(place: Place, report: Report, most_mb: int, times: float) -> None:
    """An anchor several times larger than the memory that the worker may have."""
    source = place.folder / "wide.py"
    rows = int(times * most_mb * 2**20 / 4 / 64 / 4)
    source.write_text(_WIDE.format(examples=str(ROOT / "examples"), rows=rows))
    saver = [sys.executable, str(source), str(place.folder / "wide")]
    subprocess.run(saver, env=place.env, check=True)
    job = place.drop(str(place.folder / "wide"), f"{source}:recipe", "wide")
    began = time.monotonic()
    with memory_limit(most_mb << 20) as prefix:
        once = ("publish", "work", place.spool, "--drain", "--tries", "1")
        ended = place.ett(*once, prefix=prefix, check=False)
    took = time.monotonic() - began
    told = json.loads(place.ett("publish", "jobs", place.spool, "--json").stdout)["jobs"]
    state = next(row for row in told if row["id"] == job)
    done = state["state"] == "done"
    row = {"limit": most_mb, "tables": rows * 4 * 64 * 4 / 2**20, "s": took}
    died = f"{state['state']}: the worker ended with {ended.returncode}"
    row |= {"ended": state["told"].get("version") or state["told"].get("reason") or died}
    columns = [
        Column("limit", "limit, MiB"),
        Column("tables", "tables, MiB", _s),
        Column("s", "seconds", _s),
        Column("ended", "ended"),
    ]
    report.sheets.append(Sheet("a worker in a cgroup", columns, [row]))
    report.bars.append(
        bar("tables over the worker's memory", f"{times:g}×", row["tables"] / most_mb, done, "×")
    )


_WIDE = """
import sys
sys.path.insert(0, {examples!r})
import torch
from torch import nn
import torchett as ett
from torchett.levers.publish import Parity, Recipe

ROWS = {rows}

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, 64, mode="sum") for _ in range(4))
        self.top = nn.Linear(64, 1)

    def forward(self, ids, offsets):
        return self.top(sum(table(ids, offsets) for table in self.tables))

def example(batch):
    drawn = torch.Generator().manual_seed(batch)
    return torch.randint(ROWS, (batch * 4,), generator=drawn), torch.arange(0, batch * 4, 4)

def recipe():
    return Recipe(
        build=Wide, example=example, inputs={{"ids": ("ids",), "offsets": ("batch",)}},
        dims={{"batch": (1, 256), "ids": (1, 1024)}}, parity=Parity(most=1e-4, mean=1e-5),
    )

if __name__ == "__main__":
    with torch.device("meta"):
        model = Wide()
    model.to_empty(device="cpu")
    for table in model.tables:
        nn.init.uniform_(table.weight, -1, 1)
    nn.init.ones_(model.top.weight), nn.init.ones_(model.top.bias)
    checkpoints = ett.Checkpointer(sys.argv[1], every=10**9, upload="thread")
    checkpoints.save(0, {{"model": model}}, wait=True)
    checkpoints.close(final=False)
"""


def _s(value: float) -> str:
    return f"{value:.2f}"


def main() -> None:
    serve([every_batch])
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS[:-1])
    parser.add_argument("--preset", default="tiny", choices=["tiny", "small"])
    parser.add_argument("--steps", type=int, default=30, help="of training")
    parser.add_argument(
        "--ranks", type=int, default=1, help="of training; with 2 or more TorchRec shards tables"
    )
    parser.add_argument("--each", type=int, default=1, help="every so many batch sizes")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--engine", default="here", choices=["here", "ray", "both"])
    parser.add_argument("--recipe", default="tiny", help="of the many jobs; or tiny_weights")
    parser.add_argument("--limit-mb", type=int, default=768)
    parser.add_argument("--times", type=float, default=4.0, help="tables over the limit")
    args = parser.parse_args()
    report = Report("publish")
    with tempfile.TemporaryDirectory(prefix="ett-bench-publish-") as folder:
        place = Place(Path(folder))
        if {"ways", "load", "batches"} & set(args.only):
            ways(place, report, args.preset, args.steps, args.ranks)
            load(place, report, args.preset)
        if "batches" in args.only and args.preset == "tiny":
            batches(place, report, args.preset, args.each)
        if "kills" in args.only:
            kills(place, report, args.kills)
        if "many" in args.only:
            recipe = f"{RECIPES}:{args.recipe}"
            many(place, report, args.jobs, args.engine, args.workers, recipe)
        if "limit" in args.only:
            limit(place, report, args.limit_mb, args.times)
        report.show(args.json)


if __name__ == "__main__":
    main()
