"""What zero-code hooks cost a training script.

    ./dev bench hooks [--quick] [--json]
    ./dev bench hooks --gpu [--preset 124m] [--seconds 70]      throughput alone, on a CUDA device

per step    a plain loop (DataLoader, zero_grad, backward, clipping, update) on a tiny model: blocks
            of 25 steps through the hooks and through what they wrap, in turn, in one process;
            the median difference of neighbouring blocks, in CPU time of the thread; the median
            of five processes, and what each of them found. Then the hooks' code alone: what it
            costs where no model evicts it from the caches. Where TraceML is installed: the same
            loop under `traceml run`, with its `trace_step` around every step of a block and around
            none
throughput  of the compiled GPT of examples/gpt (a device's default: 124m on a GPU, tiny on a CPU):
            blocks of about a second with hooks and without, in turn, in one process
start-up    CPU time that hooks take until the first step is over, part by part, inside the
            process: the difference of two whole processes, each 3 s, drowns in what they vary by.
            torchett has its bytecode, as any installed package has
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from _table import NOT_INSTALLED, Column, Report, Row, Sheet, bar, fresh, options, serve

ROOT = Path(__file__).resolve().parents[1]
INSTALL = "from torchett.record.hooks import install_plugin; install_plugin()"
STARTS = {
    "hooks are installed": """
import json, time
import torch, torch._dynamo, torch.distributed, torch.utils.data
began = time.process_time()
INSTALL
print(json.dumps(time.process_time() - began))
""",
    "their finders, while torch is imported": """
import cProfile, json, pstats
INSTALL
watching = cProfile.Profile()
watching.runcall(__import__, "torch")
times = pstats.Stats(watching).stats.items()
print(json.dumps(sum(seen[2] for (file, *_), seen in times if "torchett" in file)))
""",
    "a model, its optimizer and a step": """
import json, time
import torch, torch._dynamo, torch.distributed, torch.utils.data
INSTALL
began = time.process_time()
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.randn(2, 4)).sum().backward()
optimizer.step()
print(json.dumps(time.process_time() - began))
""",
}
BLOCK = 25  # short: what else the machine does meanwhile is then in both of a pair
WARM = 32  # pairs of blocks that are not counted
PROCESSES = 5  # where things happen to lie in memory makes one cheaper than the next


def bare() -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("ETT_")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    path = [str(ROOT / "src"), env.get("PYTHONPATH", "")]
    return env | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


# Per step --------------------------------------------------------------------------------------


class Hooked:
    """Hooks are installed, and can be left out: names are as hooked by then, or as they were."""

    def __init__(self, folder: Path) -> None:
        import torch
        from torch.optim import optimizer
        from torch.utils.data import dataloader

        from torchett.record.hooks import install_plugin

        self._autograd, self._optimizer = torch.autograd, optimizer.Optimizer
        self._iterator = dataloader._BaseDataLoaderIter
        self._table = optimizer._global_optimizer_post_hooks
        self._plain = self._names()
        os.environ.update(ETT_RUN=str(folder), ETT_JOB="bench", ETT_ATTEMPT="0")
        install_plugin()

    def _names(self) -> tuple[Any, Any, Any]:
        fetch, run = self._iterator.__next__, self._autograd._engine_run_backward
        return fetch, self._optimizer.zero_grad, run

    @contextmanager
    def names(self, on: bool, net: Any) -> Iterator[tuple[Any, Any]]:
        """How to fetch a batch and how to zero gradients; without hooks all others are out, too."""
        if on:
            yield self._names()[:2]
            return
        table, run = dict(self._table), self._names()[2]
        call = vars(net).pop("_compiled_call_impl", None)
        self._autograd._engine_run_backward = self._plain[2]
        self._table.clear()
        yield self._plain[:2]
        self._autograd._engine_run_backward = run
        self._table.update(table)
        if call is not None:
            vars(net)["_compiled_call_impl"] = call


def recognised(folder: Path) -> int:
    """The steps in this process's record."""
    from torchett.runs.reader import RunReader

    rows = RunReader(folder).poll().history().rows
    return int(rows.count[rows.is_step].sum())


def error(values: list[float]) -> float:
    """How far off a median may be, roughly."""
    low, _, high = statistics.quantiles(values, n=4)
    return 1.25 * (high - low) / len(values) ** 0.5


class TinyLoop:
    """A plain training loop, and endless batches for it."""

    def __init__(self) -> None:
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.net = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        data = TensorDataset(torch.randn(4000, 4), torch.randn(4000, 1))
        self._loader, self._left = DataLoader(data, batch_size=1), 0

    def batches(self) -> Any:
        """An iterator that has a block of batches left."""
        if self._left < BLOCK:
            self._batches, self._left = iter(self._loader), 4000
        self._left -= BLOCK
        return self._batches

    def block(self, following: Any, zeroing: Any, around: Any = None) -> float:
        """CPU microseconds a step."""
        import torch

        net, optimizer, params = self.net, self.optimizer, list(self.net.parameters())
        batches = self.batches()
        began = time.thread_time_ns()
        for _ in range(BLOCK):
            with around(net) if around is not None else nullcontext():
                x, y = following(batches)
                zeroing(optimizer)
                ((net(x) - y) ** 2).mean().backward()
                torch.nn.utils.clip_grad_norm_(params, 1.0)
                optimizer.step()
        return (time.thread_time_ns() - began) / BLOCK / 1e3


def compared(block: Callable[[bool], float], pairs: int) -> tuple[list[float], list[float]]:
    """Times without, and what is added, of neighbouring blocks after the first ones."""
    without, extra = [], []
    for k in range(pairs + WARM):
        times = {on: block(on) for on in (k % 2 == 0, k % 2 == 1)}
        if k >= WARM:  # by then the hooks have learned what this loop is like
            without.append(times[False])
            extra.append(times[True] - times[False])
    return without, extra


def per_step(pairs: int) -> Row:
    """CPU microseconds a step, in neighbouring blocks with hooks and with what they wrap."""
    folder = Path(tempfile.mkdtemp(prefix="ett-hooks-"))
    hooked, loop = Hooked(folder), TinyLoop()

    def block(on: bool) -> float:
        with hooked.names(on, loop.net) as names:
            return loop.block(*names)

    without, extra = compared(block, pairs)
    steps = recognised(folder)
    assert steps == (pairs + WARM) * BLOCK, f"{steps} steps were recognised"
    shutil.rmtree(folder)
    return {
        "loop": "plain loop, tiny model",
        "without_us": statistics.median(without),
        "cost_us": statistics.median(extra),
        "error_us": error(extra),
    }


def typical(rows: list[Row]) -> Row:
    """The median process, and what all of them found."""
    rows = sorted(rows, key=lambda row: row["cost_us"])
    found = ", ".join(f"{row['cost_us']:.1f}" for row in rows)
    return {**rows[len(rows) // 2], "found": found}


def traceml_steps(pairs: int, into: str) -> Row:
    """The same for TraceML, in a process that `traceml run` started."""
    import traceml_ai

    began = traceml_ai.init(mode="auto")
    loop = TinyLoop()

    def block(on: bool) -> float:
        around = traceml_ai.trace_step if on else None
        return loop.block(next, lambda optimizer: optimizer.zero_grad(), around)

    without, extra = compared(block, pairs)
    row = {
        "loop": f"the same, TraceML {version('traceml-ai')}",
        "without_us": statistics.median(without),
        "cost_us": statistics.median(extra),
        "error_us": error(extra),
    }
    Path(into).write_text(json.dumps({"error": "no-op"} if began.disabled else row))
    return row


def traceml(pairs: int) -> Row:
    """The row of TraceML, or why there is none."""
    row: Row = {"loop": "the same, TraceML", "error": NOT_INSTALLED}
    if find_spec("traceml_ai") is None:
        return row
    with tempfile.TemporaryDirectory() as folder:
        into, script = Path(folder, "row.json"), Path(folder, "loop.py")
        here, call = Path(__file__).parent, f"hooks.traceml_steps({pairs}, {str(into)!r})"
        script.write_text(f"import sys; sys.path[:0] = [{str(here)!r}]; import hooks; {call}")
        command = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", str(script)]
        done = subprocess.run(command, cwd=folder, env=bare(), capture_output=True, text=True)
        if into.exists():
            return {**row, "error": None, **json.loads(into.read_text())}
        return {**row, "error": f"ended with {done.returncode}"}


def alone(steps: int) -> Row:
    """CPU microseconds of the hooks' own code for one step, called back to back."""
    import torch
    from torch.optim import optimizer as optim

    from torchett.record.clock import now_ns
    from torchett.record.hooks import install_plugin
    from torchett.record.hooks.watcher import watcher

    folder = Path(tempfile.mkdtemp(prefix="ett-hooks-"))
    os.environ.update(ETT_RUN=str(folder), ETT_JOB="bench", ETT_ATTEMPT="0")
    install_plugin()
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    after = next(reversed(optim._global_optimizer_post_hooks.values()))
    batches = type("Batches", (), {"_dataset": object()})()

    def block(steps: int) -> float:
        began = time.thread_time_ns()
        for _ in range(steps):
            watcher.fetched(batches, now_ns(), True)
            watcher.gradients_zeroed()
            watcher.forward_begins(net)
            watcher.backward_begins(True)
            after(optimizer, (), {})
        return (time.thread_time_ns() - began) / steps / 1e3

    for _ in range(200):
        block(1)
    times = [block(1000) for _ in range(steps // 1000)]
    shutil.rmtree(folder)
    return {"loop": "the hooks' code alone, back to back", "cost_us": statistics.median(times)}


# Throughput ------------------------------------------------------------------------------------


def throughput(preset: str, seconds: float) -> Row:
    """Steps a second of the compiled GPT with hooks and without, in blocks of about a second."""
    import torch

    sys.path.insert(0, str(ROOT / "examples"))
    from gpt import train

    world = train.World(rank=0, local_rank=0, size=1)
    device = train.set_up_device(world)
    preset = preset or ("124m" if device.type == "cuda" else "tiny")
    folder = Path(tempfile.mkdtemp(prefix="ett-hooks-"))
    hooked = Hooked(folder)
    asked = Namespace(preset=preset, batch_size=None, seed=0, lr=1e-4, compile=True)
    asked.num_workers, asked.data_warmup = 2, 0.0
    model, optimizer = train.build_model(asked, device)
    runner = train.parallel(asked, world, model)
    batches = iter(train.build_loader(asked, world, device, range(1_000_000)))
    done = {True: 0, False: 0}

    def block(on: bool, steps: int) -> float:
        """Seconds a step, all of it done on the device."""
        with hooked.names(on) as (following, zeroing):
            began = time.perf_counter()
            for _ in range(steps):
                train.loss_of(runner, following(batches), device).backward()
                optimizer.step()
                zeroing(optimizer)
            if device.type == "cuda":
                torch.cuda.synchronize()
            done[on] += steps
            return (time.perf_counter() - began) / steps

    block(True, 5)  # compiles
    steps = max(int(1.0 / block(True, 80)), 2)  # by then hooks have learned what the loop is like
    without, ratios, until = [], [], time.monotonic() + seconds
    while time.monotonic() < until or len(ratios) < 2:
        times = {on: block(on, steps) for on in (len(ratios) % 2 == 0, len(ratios) % 2 == 1)}
        without.append(times[False] * 1e3)
        ratios.append(100 * (times[False] / times[True] - 1))
    assert recognised(folder) == done[True], f"{recognised(folder)} steps of {done[True]}"
    shutil.rmtree(folder)
    return {
        "loop": f"GPT {preset}, compiled, {device.type}",
        "step_ms": statistics.median(without),
        "pairs": len(ratios),
        "block": steps,
        "change_percent": statistics.median(ratios),
        "error_percent": error(ratios),
    }


def throughput_report(preset: str, seconds: float, as_json: bool) -> None:
    row = fresh(throughput, preset=preset, seconds=seconds)
    report = Report("hooks")
    columns = [
        Column("loop", "loop"),
        Column("step_ms", "a step without, ms", lambda ms: f"{ms:.2f}"),
        Column("pairs", "pairs of blocks"),
        Column("block", "steps a block"),
        Column("change_percent", "throughput with hooks, %", lambda percent: f"{percent:+.3f}"),
        Column("error_percent", "±", lambda percent: f"{percent:.3f}"),
    ]
    report.sheets.append(Sheet("throughput", columns, [row]))
    change = row.get("change_percent")
    met = change is not None and change >= -0.5
    report.bars.append(bar("throughput with hooks", "within 0.5%", change, met, "%"))
    report.show(as_json)


# Start-up --------------------------------------------------------------------------------------


def inside_ms(name: str, run: Path | None) -> float:
    """What a fresh process says that part took; with hooks if there is a run to record to."""
    code = STARTS[name].replace("INSTALL", INSTALL if run else "")
    env = bare() | ({"ETT_RUN": str(run), "ETT_JOB": "bench"} if run else {})
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, stdout=subprocess.PIPE, text=True
    )
    return 1e3 * float(json.loads(done.stdout.splitlines()[-1]))


def start(name: str, rounds: int) -> Row:
    """Processes with and without hooks in turn; medians."""
    without, with_hooks = [], []
    with tempfile.TemporaryDirectory() as folder:
        for k in range(rounds + 1):
            plain, hooked = inside_ms(name, None), inside_ms(name, Path(folder) / str(k))
            if k:  # the first round compiles our modules to bytecode
                without.append(plain)
                with_hooks.append(hooked)
    return {
        "start": name,
        "without_ms": statistics.median(without),
        "cost_ms": statistics.median(with_hooks) - statistics.median(without),
        "error_ms": error(with_hooks),
    }


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--gpu", action="store_true", help="throughput of a compiled GPT alone")
    parser.add_argument("--preset", default="", help="of examples/gpt, for --gpu")
    parser.add_argument("--seconds", type=float, default=70.0, help="to measure, for --gpu")
    given = parser.parse_args()
    if given.gpu:
        throughput_report(given.preset, given.seconds, given.json)
        return
    report = Report("hooks")
    step = typical([fresh(per_step, pairs=400 if given.quick else 800) for _ in range(PROCESSES)])
    other = traceml(pairs=200 if given.quick else 800)
    own = fresh(alone, steps=20_000 if given.quick else 100_000)
    starts = [start(name, 5 if given.quick else 9) for name in STARTS]

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
                Column("found", "each process, µs"),
            ],
            [step, own, other],
        )
    )
    columns = [
        Column("start", "part"),
        Column("without_ms", "without, ms", number),
        Column("cost_ms", "hooks add, ms", number),
        Column("error_ms", "±", number),
    ]
    report.sheets.append(Sheet("CPU time at start-up", columns, starts))
    cost, most = step.get("cost_us"), sum(one["cost_ms"] for one in starts)
    report.bars += [
        bar(
            "per step, in a real loop",
            "≤ 15 µs of CPU",
            cost,
            cost is not None and cost <= 15,
            "µs",
        ),
        bar("per step, alone", "≤ 15 µs of CPU", own["cost_us"], own["cost_us"] <= 15, "µs"),
        bar("start-up of a trainer", "≤ 50 ms of CPU", most, most <= 50, "ms"),
    ]
    report.show(given.json)


if __name__ == "__main__":
    serve([per_step, alone, throughput])
    main()
