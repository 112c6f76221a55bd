"""DDP on one node: how much of what all ranks hold alike is copied and held, and what it costs.

Each number of ranks runs twice: with the state divided between the ranks of the node, and with all
of it copied by every rank, as for tensors that are too small to be divided. Saves compare what
ranks hold alike at the 1st, 2nd, 4th, 8th … time: divided, a rank takes checksums of its tensors
where they are, before the next optimizer step; else the upload takes them of the copy.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests" / "levers" / "checkpoint"
sys.path.insert(0, str(TESTS))
os.environ["ETT_DISABLE"] = "1"

WIDTH, SAVES = 1024, 12


def ddp(count: int, mib: int, divided: bool) -> dict[str, Any]:
    """Train and save on that many ranks of this node."""
    import torch
    import torch.distributed as dist
    from world import ranks

    from torchett.levers.checkpoint import Checkpointer
    from torchett.levers.checkpoint.memory import nearby
    from torchett.levers.checkpoint.state import division

    if not divided:
        division._LARGE = 1 << 60
    layers = max(1, mib * (1 << 20) // (3 * 4 * WIDTH * WIDTH))
    folder = Path(tempfile.mkdtemp(prefix="ett-replicas-"))

    def work(rank: int) -> None:
        torch.manual_seed(0)
        net = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
        model = torch.nn.parallel.DistributedDataParallel(net)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        state = {"model": model, "optimizer": optimizer}
        ckpt = Checkpointer(folder / "c", every=10**6, snapshot_every=10**6, upload="thread")
        ckpt.restore(state)
        cpu_s: dict[bool, list[float]] = {True: [], False: []}
        for step in range(SAVES + 1):
            model(torch.randn(8, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            began = time.monotonic()
            if step == 0:
                ckpt.step(step, state)
                first_s = time.monotonic() - began
                assert ckpt._met is not None
                ckpt._met.snapshots.wait()
                continue
            ckpt.save(step, state)
            save = ckpt._met.saves.current
            ckpt.fence()
            ckpt.wait()
            assert ckpt._met.tier is not None
            while not ckpt._met.tier.is_settled_here:
                time.sleep(0.005)
            cpu_s[step & (step - 1) == 0].append(save.copy.cpu_s)
            dist.barrier()
        mine = {
            "staged": sum(tensor.nbytes for tensor in save.tensors),
            "shared": sum(arena.size for arena in ckpt._met.snapshots._arenas.values()),
            "first_s": first_s,
            "compared": statistics.median(cpu_s[True]),
            "not": statistics.median(cpu_s[False]),
            "state": sum(p.nbytes for p in model.parameters()) * 3,
        }
        told: list[Any] = [None] * count
        dist.all_gather_object(told, mine)
        if rank == 0:
            keepers = nearby.keepers_here(str(folder / "c"))
            held = sum(keeper.held_bytes for keeper in keepers)
            (folder / "told").write_text(json.dumps([told, held]))
        dist.barrier()
        ckpt.close()

    ranks(count, folder, work)
    told, held = json.loads((folder / "told").read_text())
    size = told[0]["state"]

    def times(nbytes: int) -> str:
        return f"{nbytes / 1e6:.0f} MB, {nbytes / size:.2f} ×"

    def typical_ms(key: str) -> float:
        return round(1e3 * statistics.median(one[key] for one in told), 1)

    return {
        "ranks": count,
        "divided": "yes" if divided else "no",
        "state": f"{size / 1e6:.0f} MB",
        "copied a node": times(sum(one["staged"] for one in told)),
        "shared memory": times(sum(one["shared"] for one in told)),
        "of keepers": times(held),
        "copy ms a rank": typical_ms("not"),
        "when compared ms": typical_ms("compared"),
        "first step ms": typical_ms("first_s"),
        "share": sum(one["staged"] for one in told) / size,
    }


def main() -> None:
    from _table import Bar, Column, Report, Sheet, fresh, options

    parser = options(__doc__ or "")
    parser.add_argument("--mib", type=int, default=192, help="of state")
    args = parser.parse_args()
    mib = 48 if args.quick else args.mib
    rows = [
        fresh(ddp, count=count, mib=mib, divided=divided)
        for count in (2, 4)
        for divided in (False, True)
    ]
    report = Report("DDP's state on one node", facts={"state": f"{mib} MiB"})
    columns = [Column(name, name, str) for name in rows[0] if name != "share"]
    report.sheets = [Sheet("copies", columns, rows)]
    most = max(row["share"] for row in rows if row["divided"] == "yes")
    report.bars = [Bar("copied a node", "≤ 1.05 × state", f"{most:.2f} ×", most <= 1.05)]
    report.show(args.json)


if __name__ == "__main__":
    from _table import serve

    serve([ddp])
    main()
