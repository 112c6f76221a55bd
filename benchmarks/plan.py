"""A start-up plan against its critical path: the reference GPT with a slow data service.

    ./dev bench plan [--service 8] [--rounds 3] [--preset tiny] [--cold]

Each start is a process of its own: the stages of examples/gpt (device, model, optimizer, first
batch of a data service that takes 8 s, and the compile on a batch of the same shape) as an
`ett.Plan`, once one after the other and once overlapped, taking turns; then three steps on real
batches. The clock runs from the plan's begin. All starts share a compile cache that one start
before them has filled (`--cold`: each has an empty one of its own).

The critical path is the longest chain of stages by how long they took in that very run: how long
the same stage takes in another process says little on a machine that others use. Whether
overlapping makes stages dearer is seen in CPU seconds. A plan of stages that only wait (8 s
service, 1 s model, 4 s compile) has no such noise.

    one after the other   │ model │ compile ─────── │ first batch ┄┄┄┄┄┄┄┄┄ │ step 0
    as a plan             │ model │ compile ─────── │
                          │ first batch ┄┄┄┄┄┄┄┄┄ │   step 0
"""

import os
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from _table import Bar, Column, Report, Row, Sheet, bar, fresh, options, serve

from torchett.levers.startup.plan.plan_run import PlanRun
from torchett.levers.startup.plan.schedule import makespan

ROOT = Path(__file__).resolve().parents[1]


def start(overlap: bool, service_s: float, preset: str, folder: str, cache: str) -> Row:
    """One start, and what came of it."""
    os.environ |= {
        "TORCHINDUCTOR_CACHE_DIR": cache,
        "ETT_RUNS": f"{folder}/runs",
        "ETT_JOB": "plan",
    }
    sys.path.insert(0, str(ROOT / "examples"))
    import torch
    from common.batches import StepDataset, step_loader
    from common.digest import weights_digest
    from common.world import World, set_up_device
    from gpt.data import BATCH_SIZES, token_batch
    from gpt.model import GPT, PRESETS

    import torchett as ett
    from torchett.levers.startup.first_compile.fast_batch import shadow

    ett.init()
    config, cpu = PRESETS[preset], torch.device("cpu")
    sizes = {"vocab_size": config.vocab_size, "block_size": config.block_size}
    make_batch = partial(token_batch, **sizes, batch_size=BATCH_SIZES[preset])
    plan = ett.Plan(seed=0)

    @plan.stage("device_init", runs="main")
    def device() -> torch.device:
        return set_up_device(World.from_env())

    @plan.stage("get_first_batch_data")
    def batches() -> Any:
        dataset = StepDataset(make_batch, seed=0, rank=0, warmup_s=service_s)
        source = iter(step_loader(dataset, range(3), workers=0, device=cpu))
        return [next(source)], source

    @plan.stage("train_module_creation")
    def model() -> Any:
        model = GPT(config)
        return model, torch.compile(model)

    @plan.stage("init_plugins", after=[model], runs="main")
    def optimizer(model: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model[0].parameters(), lr=1e-3, fused=True)

    @plan.stage("pt2_compile", after=[model])
    def compiled(model: Any) -> None:
        tokens, targets = make_batch(torch.Generator().manual_seed(1))
        shadow(model[1])(tokens, targets).backward()

    began, spent = time.monotonic(), time.process_time()
    ready = plan.run(overlap=overlap)
    spent = time.process_time() - spent
    first_step_s, compiles = 0.0, torch._dynamo.utils.counters["stats"]["unique_graphs"]
    first, later = ready.batches
    network, runner = ready.model
    losses = []
    for tokens, targets in ett.steps([*first, *later]):
        loss = runner(tokens, targets)
        loss.backward()
        ready.optimizer.step()
        ready.optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        first_step_s = first_step_s or time.monotonic() - began
    assert plan.last is not None
    again = torch._dynamo.utils.counters["stats"]["unique_graphs"] - compiles
    return {
        "first_step_s": first_step_s,
        "cpu_s": spent,
        "digest": weights_digest(network),
        "losses": losses,
        "recompiled": again,
        "plan": plan.last.to_json(),
    }


def waiting(service_s: float, compile_s: float) -> Row:
    """A plan of the same shape whose stages only wait."""
    import torchett as ett

    plan = ett.Plan()

    @plan.stage("process_group_init", runs="main")
    def group() -> None:
        time.sleep(0.5)

    @plan.stage("get_first_batch_data")
    def batches() -> None:
        time.sleep(service_s)

    @plan.stage("train_module_creation", after=[group], rng=False)
    def model() -> None:
        time.sleep(1.0)

    @plan.stage("pt2_compile", after=[model])
    def compiled() -> None:
        time.sleep(compile_s)

    plan.run(record=lambda *_: None)
    assert plan.last is not None
    return {"plan": plan.last.to_json()}


def once(args: Namespace, *, overlap: bool, service_s: float, shared: str) -> Row:
    """A start in a process of its own, and how `ett startup show` draws it."""
    with tempfile.TemporaryDirectory() as folder:
        cache = f"{folder if args.cold else shared}/inductor"
        given = {"service_s": service_s, "preset": args.preset, "folder": folder, "cache": cache}
        found = fresh(start, overlap=overlap, **given)
        if "error" in found:
            raise SystemExit(f"plan: a start {found['error']}")
        return found | fresh(show, folder=folder)


def critical_s(run: PlanRun) -> float:
    """The longest chain of the run's stages, each as long as it took."""
    took = {one.name: one.took_ns for one in run.stages}
    return makespan([one.stage for one in run.stages], took) / 1e9


def main() -> None:
    serve([start, show, waiting])
    parser = options(__doc__)
    parser.add_argument("--service", type=float, default=8.0, help="seconds to the first batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--cold", action="store_true", help="an empty compile cache each time")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as shared:
        if not args.cold:
            once(args, overlap=False, service_s=0.0, shared=shared)
        rounds = [
            {
                side: once(args, overlap=overlap, service_s=args.service, shared=shared)
                for side, overlap in (("serial", False), ("plan", True))
            }
            for _ in range(1 if args.quick else args.rounds)
        ]
    rows, ratios, firsts = [], [], []
    for sides in rounds:
        serial, plan = (PlanRun.from_json(sides[side]["plan"]) for side in ("serial", "plan"))
        longest = critical_s(plan)
        step_s = sides["plan"]["first_step_s"] - plan.wall_ns / 1e9
        ratios.append(plan.wall_ns / 1e9 / longest)
        firsts.append(sides["plan"]["first_step_s"] / (longest + step_s))
        took = {one.name: one.took_ns / 1e9 for one in plan.stages}
        rows.append(
            {
                "service_s": took["batches"],
                "compile_s": took["compiled"],
                "model_s": took["model"],
                "critical_s": longest,
                "plan_s": plan.wall_ns / 1e9,
                "first_s": sides["plan"]["first_step_s"],
                "sum_s": plan.serial_ns / 1e9,
                "serial_s": serial.wall_ns / 1e9,
                "cpu_s": sides["plan"]["cpu_s"],
                "serial_cpu_s": sides["serial"]["cpu_s"],
                "path": " → ".join(one.name for one in plan.critical_path),
            }
        )
    waited = PlanRun.from_json(fresh(waiting, service_s=args.service, compile_s=4.0)["plan"])
    exact = waited.wall_ns / 1e9 / max(args.service, 0.5 + 1.0 + 4.0)
    dearer = statistics.median(row["cpu_s"] / row["serial_cpu_s"] for row in rows)
    same = {(sides[s]["digest"], str(sides[s]["losses"])) for sides in rounds for s in sides}
    recompiled = sum(sides[s]["recompiled"] for sides in rounds for s in sides)
    report = Report(name="start-up plan", facts={"preset": args.preset})
    seconds = "{:.2f} s".format
    report.sheets.append(
        Sheet(
            title="one line a round",
            columns=[
                Column("service_s", "first batch", seconds),
                Column("model_s", "model", seconds),
                Column("compile_s", "compile", seconds),
                Column("sum_s", "sum", seconds),
                Column("critical_s", "critical path", seconds),
                Column("plan_s", "plan", seconds),
                Column("first_s", "first step done", seconds),
                Column("cpu_s", "CPU, plan", seconds),
                Column("serial_cpu_s", "CPU, serial", seconds),
                Column("serial_s", "serial start", seconds),
                Column("path", "as it ran"),
            ],
            rows=rows,
            note="first batch … first step done: of the overlapped start",
        )
    )
    ratio, first = statistics.median(ratios), statistics.median(firsts)
    promised = "≤ 1.10 × critical path"
    report.bars = [
        bar("the plan", promised, ratio, ratio <= 1.10, "×"),
        bar("the first step, its own time added", promised, first, first <= 1.10, "×"),
        bar("the same where stages only wait", promised, exact, exact <= 1.10, "×"),
        bar("CPU seconds of the stages", "≤ 1.10 × serial", dearer, dearer <= 1.10, "×"),
        Bar(
            "weights after 3 steps, serial and plan",
            "bit-identical",
            "identical" if len(same) == 1 else "DIFFER",
            len(same) == 1,
        ),
        Bar("compiled again in the loop", "0", str(recompiled), recompiled == 0),
    ]
    report.show(args.json)
    if not args.json:
        print(rounds[-1]["plan"]["shown"])


def show(folder: str) -> Row:
    """What `ett startup show` says of the start."""
    from click.testing import CliRunner

    from torchett.cli.main import main as ett

    shown = CliRunner().invoke(ett, ["startup", "show", f"{folder}/runs/plan"])
    return {"shown": shown.output}


if __name__ == "__main__":
    main()
