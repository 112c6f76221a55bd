"""What it costs a steady compiled step that its compiles are observed: nothing is called in it.

    ./dev bench observe [--backend inductor] [--pairs 200] [--json]

One process trains one compiled model in short blocks of steps. Every other block runs with the
hooks on torch's compiler taken out, in an order that is turned around from pair to pair, so that
whatever else the machine does falls on both. Processor time, and the count of calls of our hooks.
Then both sides compile from nothing, by turns.
"""

import os
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _table import Column, Report, Row, Sheet, bar, options


class Calls:
    """Counts what the hooks are told, and passes it on."""

    def __init__(self, heard: Any) -> None:
        self.heard, self.count = heard, 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        told = getattr(self.heard, name)

        def count(*words: Any) -> None:
            self.count += 1
            told(*words)

        return count


def measure(args: Namespace) -> tuple[list[Row], list[Row], int]:
    """Steady blocks and compiles of both sides, and calls of hooks in steady blocks."""
    import torch
    import torch._dynamo.convert_frame
    import torch._dynamo.utils

    import torchett as ett
    from torchett.levers.compile.adapter import events
    from torchett.levers.compile.observe import watch

    torch.set_num_threads(1)
    ett.init(job="observe")
    events.stop_listening()
    calls = Calls(watch._watcher)

    def listen() -> None:
        events.listen_to_phases(torch._dynamo.utils, calls)
        events.listen_to_reasons(torch._dynamo.convert_frame, calls)

    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    runner = torch.compile(model, backend=args.backend)
    batch = torch.randn(64, 64)

    def step() -> None:
        runner(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def block(on: bool) -> float:
        events.stop_listening()
        if on:
            listen()
        began = time.thread_time()
        for _ in range(args.steps):
            step()
        return time.thread_time() - began

    listen()
    for _ in range(20):
        step()
    before = calls.count
    assert before > 0
    times: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(args.pairs):
        for on in (False, True) if pair % 2 else (True, False):
            times[on].append(block(on))
    steady = calls.count - before

    compiled: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(args.compiles):
        for on in (False, True) if turn % 2 else (True, False):
            torch._dynamo.reset()
            events.stop_listening()
            if on:
                listen()
            began = time.process_time()
            step()
            compiled[on].append(time.process_time() - began)
    names = {False: "not observed", True: "observed"}
    pairs = [o / n for o, n in zip(times[True], times[False], strict=True)]
    steps: list[Row] = [
        {
            "side": names[on],
            "step_us": statistics.median(times[on]) / args.steps * 1e6,
            "least_us": min(times[on]) / args.steps * 1e6,
        }
        for on in times
    ]
    steps.append({"side": "ratio", "ratio": statistics.median(pairs)})
    compiles: list[Row] = [
        {"side": names[on], "compile_s": statistics.median(compiled[on])} for on in compiled
    ]
    return steps, compiles, steady


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=50, help="steps in a block")
    parser.add_argument("--compiles", type=int, default=6)
    args = parser.parse_args()
    if args.quick:
        args.pairs, args.compiles = 20, 2
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ETT_RUNS"] = str(Path(folder) / "runs")
        steps, compiles, steady = measure(args)
    over = 100 * (steps[-1]["ratio"] - 1)
    report = Report("observe", facts={"backend": args.backend, "python": sys.version.split()[0]})
    us = "{:.1f}".format
    report.sheets = [
        Sheet(
            "a steady step, µs of processor time",
            [Column("side", ""), Column("step_us", "median", us), Column("least_us", "least", us),
             Column("ratio", "median of pairs", "{:.4f}".format)],
            steps,
        ),
        Sheet(
            "compiling from a warm cache, s of processor time",
            [Column("side", ""), Column("compile_s", "median", "{:.3f}".format)],
            compiles,
        ),
    ]  # fmt: skip
    report.bars = [
        bar("a steady step, slower by", "≤ 0.5%", over, over <= 0.5, "%"),
        bar("hooks called in steady steps", "0", steady, steady == 0, ""),
    ]
    report.show(args.json)


if __name__ == "__main__":
    main()
