"""TorchRec's start-up on gloo ranks: stock against local shard metadata and cached plans.

    ./dev bench torchrec_startup [--ranks 4] [--tables 64] [--rounds 3]

Every side runs DistributedModelParallel on an EmbeddingCollection of as many tables under
`ett run --audit`, one after the other within each round. What is compared: collectives (those that
object collectives are made of counted one by one), the time in object collectives with waiting for
peers split off, the time of DistributedModelParallel itself, and the shard metadata of every table
on every rank, which must be equal to stock's to the letter. On all sides what was imported is
frozen first, as a standby of `ett run` does: else a collection of it, 150 ms, falls into any call.

Needs TorchRec: pip install --no-deps torchrec fbgemm-gpu-cpu, in versions that fit your torch, and
torchmetrics tensordict pyre-extensions tqdm iopath.
"""

import gc
import hashlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _table import Bar, Column, Report, Row, Sheet, bar, options

from torchett.levers.communication.audit import KIND
from torchett.levers.communication.collectives import GROUP_MAKERS, OBJECT_COLLECTIVES, swapped
from torchett.levers.communication.communication import communication

SIDES = {
    "stock": "stock TorchRec",
    "metadata": "local shard metadata",
    "both": "and a cached plan",
}


# A rank --------------------------------------------------------------------------------------


def worker(args: Namespace) -> None:
    """One rank of one side: build, shard, and write down what came of it."""
    import torch
    import torch.distributed as dist
    from torchrec import EmbeddingCollection, EmbeddingConfig
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embedding import EmbeddingCollectionSharder

    from torchett.levers.communication.sharding_plans import cached_sharding_plans
    from torchett.levers.communication.torchrec import _canonical, local_shard_metadata

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tables = [
        EmbeddingConfig(
            name=f"t{i}",
            embedding_dim=16,
            num_embeddings=1000 + 8 * i,
            feature_names=[f"f{i}"],
        )
        for i in range(args.tables)
    ]
    leaves, depth = 0, 0

    def counted(name: str, function: Any) -> Any:
        import functools

        if name in GROUP_MAKERS or name in OBJECT_COLLECTIVES:
            return function

        @functools.wraps(function)
        def count(*call: Any, **kwargs: Any) -> Any:
            nonlocal leaves, depth
            leaves += depth == 0
            depth += 1
            try:
                return function(*call, **kwargs)
            finally:
                depth -= 1

        return count

    restore = swapped(counted, "audit")
    with ExitStack() as levers:
        if args.side != "stock":
            levers.enter_context(local_shard_metadata())
        if args.side == "both":
            plans = levers.enter_context(cached_sharding_plans(args.plans))
        gc.collect()
        gc.freeze()
        dist.barrier()
        leaves = 0
        began, cpu = time.perf_counter(), time.process_time()
        model = DistributedModelParallel(
            EmbeddingCollection(tables=tables, device=torch.device("meta")),
            device=torch.device("cpu"),
            sharders=[EmbeddingCollectionSharder()],
        )
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        hits = plans.hits if args.side == "both" else 0
    restore()
    metadata = [
        f"{name} {_canonical(tensor.metadata())}" for name, tensor in model.state_dict().items()
    ]
    found = {
        "collectives": leaves,
        "init_s": took,
        "cpu_s": cpu,
        "plan_hits": hits,
        "tables": len(metadata),
        "digest": hashlib.sha256("\n".join(metadata).encode()).hexdigest(),
    }
    Path(args.out, f"{dist.get_rank()}.json").write_text(json.dumps(found))
    del model  # it holds groups, and gloo's threads abort in an interpreter that is torn down
    gc.collect()
    dist.destroy_process_group()


# The sides -------------------------------------------------------------------------------------


def measure(side: str, args: Namespace, plans: Path) -> Row:
    """One job of one side."""
    from torchett.runs.reader import RunReader

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torchett.cli.main", "run", "--audit", "--progress", "0"]
        command += ["--no-standby", "--job", side, "--", sys.executable]
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(args.ranks), __file__, "--worker"]
        command += ["--side", side, "--tables", str(args.tables), "--out", folder]
        command += ["--plans", str(plans)]
        env = {**os.environ, "ETT_RUNS": f"{folder}/runs", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        ranks = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("[0-9]*.json"))]
        if done.returncode or len(ranks) != args.ranks:
            print(done.stderr[-3000:], file=sys.stderr)
            raise SystemExit(f"torchrec_startup: the {side} side ended with {done.returncode}")
        reader = RunReader(Path(folder, "runs", side)).poll()
        found = communication(reader.placed_facts(KIND))
        assert found is not None
        objects = [site for site in found.sites if site.name in OBJECT_COLLECTIVES]
        return {
            "side": side,
            "collectives": max(rank["collectives"] for rank in ranks),
            "object_calls": sum(site.calls for site in objects),
            "object_ms": sum(site.total_ns for site in objects) / 1e6 / args.ranks,
            "object_work_ms": sum(site.work_ns + site.unsplit_ns for site in objects)
            / 1e6
            / args.ranks,
            "gather_ms": sum(s.total_ns for s in objects if s.name == "all_gather_object")
            / 1e6
            / args.ranks,
            "init_s": statistics.mean(rank["init_s"] for rank in ranks),
            "cpu_s": sum(rank["cpu_s"] for rank in ranks),
            "tables": ranks[0]["tables"],
            "plan_hits": ranks[0]["plan_hits"],
            "digests": [rank["digest"] for rank in ranks],
            "findings": [finding.text for finding in found.findings],
        }


def middle(rows: list[Row]) -> Row:
    """The median of every number."""
    first = rows[0]
    numbers = [key for key, value in first.items() if isinstance(value, int | float)]
    return first | {key: statistics.median(row[key] for row in rows) for key in numbers}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--tables", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if importlib.util.find_spec("torchrec") is None:
        how = __doc__.split("Needs TorchRec: ")[1].strip()
        raise SystemExit(f"torchrec_startup: TorchRec is not installed: {how}")
    if args.quick:
        args.rounds = 1
    with tempfile.TemporaryDirectory() as plans:
        rounds = [
            {side: measure(side, args, Path(plans)) for side in ("both", *SIDES)}
            for _ in range(args.rounds)
        ]
    rows = {side: middle([one[side] for one in rounds]) for side in SIDES}
    stock, ours = rows["stock"], rows["metadata"]
    equal = all(
        one[side]["digests"] == rounds[0]["stock"]["digests"] for one in rounds for side in SIDES
    )
    ratio = stock["object_work_ms"] / ours["object_work_ms"]
    gathers = f"{stock['collectives']:.0f} → {ours['collectives']:.0f}"
    report = Report(name="torchrec start-up", facts={"ranks": args.ranks, "rounds": args.rounds})
    shown = [
        Column("what", ""),
        Column("collectives", "collectives", "{:.0f}".format),
        Column("object_calls", "object calls", "{:.0f}".format),
        Column("object_work_ms", "work in them, a rank", "{:.1f} ms".format),
        Column("gather_ms", "gathers with waiting", "{:.0f} ms".format),
        Column("object_ms", "all with waiting", "{:.0f} ms".format),
        Column("init_s", "DMP init", "{:.2f} s".format),
        Column("cpu_s", "CPU, all ranks", "{:.2f} s".format),
    ]
    report.sheets.append(
        Sheet(
            title=f"{args.tables} tables, {args.ranks} gloo ranks, medians",
            columns=shown,
            rows=[rows[side] | {"what": what} for side, what in SIDES.items()],
            note="all with waiting: also the other ranks' wait for rank 0's planner",
        )
    )
    report.bars = [
        Bar("collectives in start-up", "132 → ≤ 6", gathers, ours["collectives"] <= 6),
        bar("work in object collectives", "≥ 10× less", ratio, ratio >= 10, "×"),
        Bar("shard metadata on every rank", "equal", "equal" if equal else "DIFFERS", equal),
    ]
    report.show(args.json)


if __name__ == "__main__":
    if "--worker" in sys.argv:
        own = ArgumentParser()
        own.add_argument("--worker", action="store_true")
        for name in ("--side", "--out", "--plans"):
            own.add_argument(name)
        own.add_argument("--tables", type=int)
        worker(own.parse_args())
    else:
        main()
