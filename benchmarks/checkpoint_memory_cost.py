"""What a snapshot in memory costs the steps beside it, and what others' ways to save cost.

Blocks of steps take turns: one with a save at its beginning, one without, compared pair by pair. A
block is as long as a save may take, so all of what runs beside training (the copy, the checksum,
the neighbour's copy to a keeper on this same machine) falls into it. The cost of one save over the
interval that the lever would choose is the share of time that it takes.

Beside it: `dcp.async_save` to a folder, and nvidia-resiliency-ext's local checkpoints in /dev/shm
where that is installed. The latter takes tensors on GPUs only; here its copy is made from the CPU's
(`_on_cpu`), all else is its own.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["ETT_DISABLE"] = "1"


def work(mib: int, step_s: float) -> tuple[Any, Any]:
    """A state of this size under AdamW, and a step that computes for about so long."""
    import torch

    torch.manual_seed(0)
    numbers = mib * (1 << 20) // 4 // 3  # weights and two averages
    width = 1024
    layers = max(1, numbers // (width * width))
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batch = torch.randn(64, width)

    def step() -> None:
        began = time.monotonic()
        while True:
            model(batch).square().mean().backward()
            if time.monotonic() - began > step_s:
                break
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    return {"model": model, "optimizer": optimizer}, step


Saver = tuple[Callable[[int], None], Callable[[], None], Callable[[int], None], Callable[[], None]]


def with_torch(state: dict[str, Any], folder: Path) -> Saver:
    """`dcp.async_save`, two folders in turn."""
    import torch.distributed.checkpoint as dcp

    pending: list[Any] = []

    def settle() -> None:
        if pending:
            pending.pop().result()

    def save(number: int) -> None:
        settle()
        nested = {key: value.state_dict() for key, value in state.items()}
        pending.append(dcp.async_save(nested, checkpoint_id=str(folder / str(number % 2))))

    return save, settle, lambda number: None, settle


def with_nvidia(state: dict[str, Any], folder: Path) -> Saver:
    """A local checkpoint in /dev/shm, written by the process that its queue keeps."""
    _on_cpu()
    import torch.distributed as dist
    from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue
    from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
    from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import (
        LocalCheckpointManager,
    )

    def copied(one: Any, non_blocking: bool = False) -> None:
        one.insert_tensors([tensor.detach().clone() for tensor in one.pop_tensors()])

    BasicTensorAwareStateDict.copy_tensors_to_cpu = copied

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    memory = Path(tempfile.mkdtemp(prefix="ett-memory-cost-", dir="/dev/shm"))
    manager, queue = LocalCheckpointManager(memory), AsyncCallsQueue()

    def save(number: int) -> None:
        one = BasicTensorAwareStateDict.__new__(BasicTensorAwareStateDict)  # it would want a GPU
        one.state_dict = {key: _dicts(value.state_dict()) for key, value in state.items()}
        one._is_hollow = False
        queue.schedule_async_request(manager.save(one, number, is_async=True))

    def settle() -> None:
        queue.maybe_finalize_async_calls(blocking=True)

    def end() -> None:
        settle()
        queue.close()
        shutil.rmtree(memory, ignore_errors=True)

    return save, settle, lambda number: queue.maybe_finalize_async_calls() and None, end


def _on_cpu() -> None:
    """What the package asks of CUDA, answered for the CPU."""
    import torch

    torch.cuda.synchronize = lambda *args: None
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.set_device = lambda device: None


def _dicts(value: Any) -> Any:
    """Plain dicts and lists, which may be changed in place."""
    if isinstance(value, dict):
        return {key: _dicts(one) for key, one in value.items()}
    return [_dicts(one) for one in value] if isinstance(value, list | tuple) else value


def with_memory(state: dict[str, Any], folder: Path, *, neighbour: bool) -> Saver:
    """Our tier in memory, with or without a copy in another keeper."""
    from torchett.levers.checkpoint import Checkpointer
    from torchett.levers.checkpoint.memory import nearby

    ckpt = Checkpointer(folder, every=10**9, snapshot_every=10**9, upload="thread")
    ckpt.restore(state)
    ckpt.step(0, state)
    assert ckpt._met is not None
    session = ckpt._met
    session.snapshots.wait()
    tier = session.tier
    assert tier is not None
    if neighbour:
        _with_neighbour(tier, folder)

    def settle() -> None:
        while not tier.is_settled():
            time.sleep(0.001)

    def end() -> None:
        settle()
        ckpt.close(final=False)
        for where in (str(folder), f"{folder}-neighbour"):
            for keeper in nearby.keepers_here(where):
                nearby.end(keeper.name)

    return lambda n: session.keep(n, state), settle, lambda n: ckpt.step(n, state), end


KINDS: dict[str, Callable[[dict[str, Any], Path], Saver]] = {
    "memory": partial(with_memory, neighbour=False),
    "memory and neighbour": partial(with_memory, neighbour=True),
    "dcp.async_save": with_torch,
    "nvidia-resiliency-ext": with_nvidia,
}


def measure(
    kind: str, pairs: int, block: int, mib: int, step_s: float, threads: int, most_s: float
) -> dict[str, Any]:
    """Seconds of each pair's block with a save and without; no new pair after `most_s`."""
    import torch

    torch.set_num_threads(threads)
    state, step = work(mib, step_s)
    folder = Path(tempfile.mkdtemp(prefix="ett-memory-cost-"))
    save, settle, after, end = KINDS[kind](state, folder)
    rows: list[tuple[float, float]] = []
    number, first = 1, time.monotonic()
    for pair in range(pairs + 1):
        if len(rows) > 1 and time.monotonic() - first > most_s:
            break
        took = {}
        for saves in (True, False) if pair % 2 else (False, True):
            settle()
            step()
            after(number)
            began = time.monotonic()
            if saves:
                save(number)
            for _ in range(block):
                step()
                number += 1
                after(number)
            took[saves] = time.monotonic() - began
        if pair:  # the first one pays for what later ones find ready
            rows.append((took[True], took[False]))
    end()
    shutil.rmtree(folder, ignore_errors=True)
    extra = [a - b for a, b in rows]
    error = statistics.stdev(extra) / len(extra) ** 0.5 if len(extra) > 1 else 0.0
    return {
        "kind": kind,
        "pairs": len(rows),
        "step_s": statistics.median(b for _, b in rows) / block,
        "extra_s": statistics.fmean(extra),
        "error_s": error,
        "median_s": statistics.median(extra),
    }


def _with_neighbour(tier: Any, folder: Path) -> None:
    """Send each snapshot to the keeper of another process, as if it were on another node."""
    import dataclasses

    from torchett.levers.checkpoint.memory.keeper_link import KeeperLink, Settings

    settings = tier._link._settings
    there = Settings(
        where=f"{folder}-neighbour", job=settings.job, secret=settings.secret, copy_bytes=1 << 40
    )
    link = KeeperLink(there, lambda said: None)
    link.begin(0)
    tier._other = link  # lives as long as the tier
    tier._link.partner(("127.0.0.1", link.listen_at("127.0.0.1")))
    tier.plan = dataclasses.replace(tier.plan, partner=0)


def main() -> None:
    from _table import Bar, Column, Report, Sheet, options

    parser = options(__doc__ or "")
    parser.add_argument("--pairs", type=int, help="how many (20; --quick: 4)")
    parser.add_argument("--mib", type=int, default=512, help="of state")
    parser.add_argument("--step-s", type=float, default=0.2)
    parser.add_argument("--block", type=int, default=16, help="steps of a block")
    parser.add_argument("--mtbf-h", type=float, default=8.0)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch (all cores)")
    parser.add_argument("--most-s", type=float, default=600.0, help="of a kind: fewer pairs then")
    parser.add_argument("--kinds", help="some of: " + ", ".join(KINDS))
    parser.add_argument("--child", help=argparse_hidden())
    args = parser.parse_args()
    pairs = args.pairs or (4 if args.quick else 20)
    if args.child:
        size = (args.block, args.mib, args.step_s, args.threads, args.most_s)
        print(json.dumps(measure(args.child, pairs, *size)))
        return
    rows = []
    for kind in (args.kinds or ",".join(KINDS)).split(","):
        command = [sys.executable, __file__, "--child", kind, "--pairs", str(pairs)]
        command += ["--mib", str(args.mib), "--step-s", str(args.step_s)]
        command += ["--block", str(args.block), "--threads", str(args.threads)]
        command += ["--most-s", str(args.most_s)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{kind}: {done.stderr[-2000:]}", file=sys.stderr)
            continue
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    if not rows:
        raise SystemExit("nothing was measured")
    both = next((row for row in rows if row["kind"] == "memory and neighbour"), rows[0])
    from torchett.levers.checkpoint.interval.interval import optimum_s

    cost_s = max(both["extra_s"], 1e-4)
    interval_s = optimum_s(cost_s, args.mtbf_h * 3600)
    for row in rows:
        row["share_percent"] = 100 * row["extra_s"] / interval_s
    report = Report(
        "what snapshots in memory cost",
        facts={
            "state": f"{args.mib} MiB",
            "interval": f"{interval_s:.0f} s, MTBF {args.mtbf_h} h",
            "cores": f"{args.threads} of {os.cpu_count()} train",
        },
    )
    report.sheets = [Sheet("a save", [Column(name, name, _short) for name in rows[0]], rows)]
    share = both["share_percent"]
    report.bars = [Bar("memory and neighbour", "≤ 1%", f"{share:.2f}% of the time", share <= 1.0)]
    if dcp := next((row for row in rows if row["kind"] == "dcp.async_save"), None):
        said = f"{both['extra_s']:.3f} s against {dcp['extra_s']:.3f} s"
        is_less = both["extra_s"] <= dcp["extra_s"]
        report.bars.append(Bar("a save, beside dcp.async_save", "no more", said, is_less))
    report.show(args.json)


def _short(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def argparse_hidden() -> str:
    import argparse

    return argparse.SUPPRESS


if __name__ == "__main__":
    main()
