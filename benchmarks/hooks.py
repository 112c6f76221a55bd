"""What zero-code hooks cost a training script.

    ./dev bench hooks [--quick] [--json]

per step    a plain loop (DataLoader, zero_grad, backward, clipping, update) on a tiny model: blocks
            of 20 steps through the hooks and through what they wrap, in turn, in one process;
            the median difference of neighbouring blocks, in CPU time of the thread. Then the
            hooks' code alone: what it costs where no model evicts it from the caches
start-up    CPU time of a Python process with and without hooks aboard, in turn: one that does
            nothing, and one that imports torch, makes a model and takes one step
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _table import Column, Report, Row, Sheet, bar, fresh, options, serve

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "src" / "torchett" / "record" / "site"
ONE_STEP = """
import torch
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.randn(2, 4)).sum().backward()
optimizer.step()
"""
BLOCK = 100
STARTS = {"nothing": "pass", "torch, and one step": ONE_STEP}


def hooked(run: Path) -> dict[str, str]:
    """The environment of a process with hooks aboard, recording to `run`."""
    env = bare()
    env |= {"ETT_BOARD": "torchett.record.hooks", "ETT_RUN": str(run), "ETT_JOB": "bench"}
    return env | {"PYTHONPATH": os.pathsep.join([str(SITE), env["PYTHONPATH"]])}


def bare() -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("ETT_")}
    path = [str(ROOT / "src"), env.get("PYTHONPATH", "")]
    return env | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


# Per step --------------------------------------------------------------------------------------


def per_step(pairs: int) -> Row:
    """CPU microseconds a step, in neighbouring blocks with hooks and with what they wrap."""
    import torch
    from torch.optim import optimizer as optim
    from torch.utils.data import DataLoader, TensorDataset, dataloader

    from torchett.record.hooks import board

    # The same loop twice: through the names as they are hooked by then, and through the plain ones.
    iterator, tables = (
        dataloader._BaseDataLoaderIter,
        (
            optim._global_optimizer_pre_hooks,
            optim._global_optimizer_post_hooks,
        ),
    )

    def names() -> tuple[Any, Any, Any]:
        return iterator.__next__, optim.Optimizer.zero_grad, torch.autograd._engine_run_backward

    plain = names()
    folder = Path(tempfile.mkdtemp(prefix="ett-hooks-"))
    os.environ.update(ETT_RUN=str(folder), ETT_JOB="bench", ETT_ATTEMPT="0")
    board()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(4000, 4), torch.randn(4000, 1))
    params = list(net.parameters())

    def batches() -> Iterator[Any]:
        while True:
            yield iter(DataLoader(data, batch_size=1))

    def timed(batch: Any, following: Any, zeroing: Any) -> float:
        began = time.thread_time_ns()
        for _ in range(BLOCK):
            x, y = following(batch)
            zeroing(optimizer)
            ((net(x) - y) ** 2).mean().backward()
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            optimizer.step()
        return (time.thread_time_ns() - began) / BLOCK / 1e3

    def block(batch: Any, on: bool) -> float:
        following, zeroing, run = names()
        if on:
            return timed(batch, following, zeroing)
        kept = [dict(table) for table in tables]
        torch.autograd._engine_run_backward = plain[2]
        for table in tables:
            table.clear()
        took = timed(batch, *plain[:2])
        torch.autograd._engine_run_backward = run
        for table, hooks in zip(tables, kept, strict=True):
            table.update(hooks)
        return took

    source = batches()
    batch, left = next(source), 4000
    without, extra = [], []
    for k in range(pairs + 20):
        times = {}
        for on in (k % 2 == 0, k % 2 == 1):
            if left < BLOCK:
                batch, left = next(source), 4000
            times[on] = block(batch, on)
            left -= BLOCK
        if k >= 20:  # by then the hooks have learned what this loop is like
            without.append(times[False])
            extra.append(times[True] - times[False])
    from torchett.runs.reader import RunReader

    rows = RunReader(folder).poll().history().rows
    steps = int(rows.count[rows.is_step].sum())
    assert steps == (pairs + 20) * BLOCK, f"{steps} steps were recognised"
    shutil.rmtree(folder)
    spread = statistics.quantiles(extra, n=4)
    return {
        "loop": "plain loop, tiny model",
        "without_us": statistics.median(without),
        "cost_us": statistics.median(extra),
        "low_us": spread[0],
        "high_us": spread[2],
        "error_us": 1.25 * (spread[2] - spread[0]) / len(extra) ** 0.5,
    }


def alone(steps: int) -> Row:
    """CPU microseconds of the hooks' own code for one step, called back to back."""
    import torch
    from torch.optim import optimizer as optim

    from torchett.record.hooks import board
    from torchett.record.hooks.watcher import watcher

    folder = Path(tempfile.mkdtemp(prefix="ett-hooks-"))
    os.environ.update(ETT_RUN=str(folder), ETT_JOB="bench", ETT_ATTEMPT="0")
    board()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    before, after = (
        next(iter(table.values()))
        for table in (
            optim._global_optimizer_pre_hooks,
            optim._global_optimizer_post_hooks,
        )
    )

    def block() -> float:
        began = time.thread_time_ns()
        for _ in range(1000):
            watcher.fetched(1, time.monotonic_ns(), True)
            watcher.gradients_zeroed()
            watcher.backward_begins(True)
            before(optimizer, (), {})
            after(optimizer, (), {})
        return (time.thread_time_ns() - began) / 1e6

    block()
    times = [block() for _ in range(steps // 1000)]
    shutil.rmtree(folder)
    return {"loop": "the hooks' code alone, back to back", "cost_us": statistics.median(times)}


# Start-up --------------------------------------------------------------------------------------


def cpu_ms(code: str, env: dict[str, str]) -> float:
    """CPU milliseconds of a Python process that runs this."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used * 1e3


def start(name: str, rounds: int) -> Row:
    """Both kinds of process in turn; the median of the differences."""
    without, extra = [], []
    with tempfile.TemporaryDirectory() as folder:
        for k in range(rounds + 1):
            plain = cpu_ms(STARTS[name], bare())
            with_hooks = cpu_ms(STARTS[name], hooked(Path(folder) / str(k)))
            if k:  # the first round compiles our modules to bytecode
                without.append(plain)
                extra.append(with_hooks - plain)
    return {
        "start": name,
        "without_ms": statistics.median(without),
        "cost_ms": statistics.median(extra),
    }


def main() -> None:
    given = options(__doc__ or "").parse_args()
    report = Report("hooks")
    step = fresh(per_step, pairs=300 if given.quick else 1500)
    own = fresh(alone, steps=20_000 if given.quick else 100_000)
    starts = [start(name, 5 if given.quick else 15) for name in STARTS]

    def number(value: float) -> str:
        return f"{value:.2f}"

    report.sheets.append(
        Sheet(
            "CPU time per step",
            [
                Column("loop", "loop"),
                Column("without_us", "without, µs", number),
                Column("cost_us", "hooks add, µs", number),
                Column("error_us", "±", number),
            ],
            [step, own],
        )
    )
    columns = [
        Column("start", "process"),
        Column("without_ms", "without, ms", number),
        Column("cost_ms", "hooks add, ms", number),
    ]
    report.sheets.append(Sheet("CPU time at start-up", columns, starts))
    cost, most = step.get("cost_us"), starts[-1]["cost_ms"]
    report.bars += [
        bar(
            "per step, in a real loop", "≤ 5 µs of CPU", cost, cost is not None and cost <= 5, "µs"
        ),
        bar("per step, alone", "≤ 5 µs of CPU", own["cost_us"], own["cost_us"] <= 5, "µs"),
        bar("start-up of a trainer", "≤ 50 ms of CPU", most, most <= 50, "ms"),
    ]
    report.show(given.json)


if __name__ == "__main__":
    serve([per_step, alone])
    main()
