"""What zero-code hooks cost a training script.

    ./dev bench hooks [--quick] [--json]

per step    a plain loop (DataLoader, zero_grad, backward, update) on a tiny model in one process;
            hooks are taken out and put back between batches of steps, and the CPU time of the two
            kinds is compared, batch by neighbouring batch
start-up    CPU time of a Python process with and without hooks aboard, in turn: one that does
            nothing, and one that imports torch, makes a model and takes one step
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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


def switches() -> list[Callable[[bool], None]]:
    """Functions that take each hook of a step out, or put it back."""
    import torch
    from torch.optim import optimizer as optim
    from torch.utils.data import dataloader

    def attribute(owner: Any, name: str) -> Callable[[bool], None]:
        ours = getattr(owner, name)
        theirs = ours.__wrapped__
        return lambda on: setattr(owner, name, ours if on else theirs)

    def table(hooks: dict[int, Any]) -> Callable[[bool], None]:
        kept = dict(hooks)

        def switch(on: bool) -> None:
            hooks.clear()
            hooks.update(kept if on else {})

        return switch

    return [
        attribute(dataloader._BaseDataLoaderIter, "__next__"),
        attribute(dataloader.DataLoader, "__iter__"),
        attribute(torch.autograd, "_engine_run_backward"),
        attribute(optim.Optimizer, "zero_grad"),
        table(optim._global_optimizer_pre_hooks),
        table(optim._global_optimizer_post_hooks),
    ]


def per_step(batches: int, steps: int) -> Row:
    """CPU microseconds a step with hooks and without."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from torchett.record.hooks import board

    folder = tempfile.mkdtemp(prefix="ett-hooks-")
    os.environ.update(ETT_RUN=folder, ETT_JOB="bench", ETT_ATTEMPT="0")
    board()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(steps, 4), torch.randn(steps, 1))

    def turns() -> Iterator[Any]:
        while True:
            yield from DataLoader(data, batch_size=1)

    source = turns()

    def measured() -> float:
        began = time.process_time()
        for _ in range(steps):
            x, y = next(source)
            optimizer.zero_grad()
            ((net(x) - y) ** 2).mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        return (time.process_time() - began) / steps * 1e6

    measured()  # long enough for the hooks to have learned what this loop is like
    both = switches()
    without, extra = [], []
    for _ in range(batches):
        times = {}
        for on in (True, False) if len(extra) % 2 else (False, True):
            for switch in both:
                switch(on)
            times[on] = measured()
        without.append(times[False])
        extra.append(times[True] - times[False])
    from torchett.runs.reader import RunReader

    rows = RunReader(Path(folder)).poll().history().rows
    assert int(rows.count[rows.is_step].sum()) >= batches * steps, "the hooks recognised nothing"
    spread = statistics.quantiles(extra, n=4)
    return {
        "loop": "plain loop, tiny model",
        "without_us": statistics.median(without),
        "cost_us": statistics.median(extra),
        "low_us": spread[0],
        "high_us": spread[2],
    }


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
    step = fresh(per_step, batches=20 if given.quick else 60, steps=400)
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
                Column("low_us", "quartiles", number),
                Column("high_us", "", number),
            ],
            [step],
        )
    )
    columns = [
        Column("start", "process"),
        Column("without_ms", "without, ms", number),
        Column("cost_ms", "hooks add, ms", number),
    ]
    report.sheets.append(Sheet("CPU time at start-up", columns, starts))
    cost, most = step.get("cost_us"), max(row["cost_ms"] for row in starts)
    report.bars += [
        bar("per step", "≤ 5 µs of CPU", cost, cost is not None and cost <= 5, "µs"),
        bar("start-up", "≤ 50 ms of CPU", most, most <= 50, "ms"),
    ]
    report.show(given.json)


if __name__ == "__main__":
    serve([per_step])
    main()
