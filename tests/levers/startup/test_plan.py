"""A start-up plan: overlap, results, records, and refused plans."""

import io
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from torchett.levers.startup.imports import background_imports
from torchett.levers.startup.plan.crew import Crew
from torchett.levers.startup.plan.drawing import draw
from torchett.levers.startup.plan.plan import Plan
from torchett.levers.startup.plan.plan_run import PlanRun, StageRun, record_run
from torchett.levers.startup.plan.schedule import Runs, Stage, makespan, next_overlap, serial_order

S = 1_000_000_000
Spans = list[tuple[str, int, int, bool]]


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No flight record of the test process itself."""
    from torchett.record import api
    from torchett.record.recorder import Silent

    monkeypatch.setattr(api, "_recorder", Silent())
    monkeypatch.setattr(api, "past_span", lambda *_, **__: None, raising=False)


def kept(spans: Spans) -> Any:
    return lambda account, t0, t1, background: spans.append((account, t0, t1, background))


def sleepers(*, seconds: float = 0.4) -> Plan:
    """
    loader  ├──────────────┤ 2
    group   ├──┤ ½ (main)
    model   ├──────┤ 1 (rng)
    restore        ├──────────────┤ 2
    """
    plan = Plan()

    @plan.stage("preproc_creation")
    def loader() -> str:
        time.sleep(2 * seconds)
        return "loader"

    @plan.stage("process_group_init", runs="main")
    def group() -> int:
        time.sleep(seconds / 2)
        return threading.get_ident()

    @plan.stage("train_module_creation")
    def model() -> list[float]:
        time.sleep(seconds)
        return [random.random()]

    @plan.stage("checkpoint_restore", after=[model])
    def restore(model: list[float]) -> tuple[list[float], int]:
        time.sleep(2 * seconds)
        return model, threading.get_ident()

    return plan


# Overlapping ---------------------------------------------------------------------------------


def test_a_plan_takes_as_long_as_its_critical_path() -> None:
    plan = sleepers()
    ready = plan.run()
    run = plan.last
    assert run is not None
    critical = sum(one.took_ns for one in run.critical_path)
    assert [one.name for one in run.critical_path] == ["model", "restore"]
    assert critical <= run.wall_ns < 1.1 * critical
    assert run.won_ns > 0.5 * critical
    assert ready.loader == "loader"
    assert ready.group == threading.get_ident() != ready.restore[1]
    assert ready["restore"][0] is ready.model


def test_one_after_the_other_gives_the_same() -> None:
    plan = sleepers(seconds=0.01)
    overlapped, alone = plan.run(), plan.run(overlap=False)
    assert overlapped.model == alone.model
    assert plan.last is not None
    assert not plan.last.overlapped
    assert [one.name for one in plan.last.critical_path] == ["loader", "group", "model", "restore"]


def test_switched_off_it_is_a_serial_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETT_DISABLE", "1")
    plan = sleepers(seconds=0.01)
    assert plan.run().restore[1] == threading.get_ident()


def test_stages_on_main_keep_their_order_though_a_later_one_is_ready_first() -> None:
    """
    slow    ├─────────┤
    first             ├┤      main, after slow
    second             ├┤     main, ready from the start
    """
    plan, order = Plan(), []

    @plan.stage("x-slow")
    def slow() -> None:
        time.sleep(0.1)

    @plan.stage("process_group_init", runs="main", after=[slow])
    def first() -> None:
        order.append("first")

    @plan.stage("device_init", runs="main")
    def second() -> None:
        order.append("second")

    plan.run()
    assert order == ["first", "second"]


def test_a_chain_of_threads_continues_while_main_is_busy() -> None:
    plan = Plan()

    @plan.stage("x-main", runs="main")
    def main() -> float:
        time.sleep(0.5)
        return time.monotonic()

    @plan.stage("x-a")
    def a() -> None:
        time.sleep(0.05)

    @plan.stage("x-b", after=[a])
    def b() -> float:
        return time.monotonic()

    ready = plan.run()
    assert ready.b < ready.main


def in_a_process(seed: list[float]) -> tuple[int, float, float]:
    return os.getpid(), seed[0], random.random()


def failing_process() -> None:
    raise KeyError("in there")


def dying_process() -> None:
    os._exit(3)


def test_a_stage_in_a_process_gets_arguments_and_returns_results() -> None:
    plan = Plan(seed=1)

    @plan.stage("x-first")
    def first() -> list[float]:
        return [0.5]

    plan.stage("preproc_creation", runs="process", after=[first], rng=True)(in_a_process)
    pid, given_seed, drawn = plan.run().in_a_process
    assert pid != os.getpid()
    assert given_seed == 0.5
    assert plan.run().in_a_process[2] == drawn != random.random()
    assert multiprocessing.active_children() == []


def test_the_thread_of_a_stage_has_the_callers_grad_mode() -> None:
    plan = Plan()

    @plan.stage("x-grad")
    def grad() -> bool:
        return torch.is_grad_enabled()

    with torch.no_grad():
        assert plan.run().grad is False
    assert plan.run().grad is True


# Random numbers ------------------------------------------------------------------------------


def drawing_plan(delays: list[float]) -> Plan:
    """Three stages that draw from every generator; the delays decide their order."""
    plan = Plan(seed=7)

    def stage(name: str, delay: float) -> None:
        def wait() -> None:
            time.sleep(delay)

        def draw_all() -> list[float]:
            weights = torch.nn.Linear(50, 50).weight
            time.sleep(0.02)
            more = [torch.rand(()).item(), float(np.random.rand()), random.random()]
            return [*weights.flatten().tolist(), *more]

        wait.__name__, draw_all.__name__ = f"wait_{name}", name
        plan.stage("x-wait")(wait)
        plan.stage("train_module_creation", after=[wait])(draw_all)

    # `draw_all` has no arguments, so it only waits for `wait`.
    for name, delay in zip("abc", delays, strict=True):
        stage(name, delay)
    return plan


@pytest.mark.parametrize("delays", [[0.0, 0.0, 0.0], [0.1, 0.05, 0.0]])
def test_weights_are_those_of_a_serial_start_to_the_bit(delays: list[float]) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    plan = drawing_plan(delays)
    overlapped, alone = plan.run(), plan.run(overlap=False)
    assert [overlapped[name] for name in "abc"] == [alone[name] for name in "abc"]
    assert overlapped.a != overlapped.b
    assert torch.equal(torch.get_rng_state(), before)


def test_a_stage_that_seeds_torch_itself_uses_that_seed() -> None:
    plan = Plan()

    @plan.stage("train_module_creation")
    def weight() -> torch.Tensor:
        torch.manual_seed(5)
        return torch.nn.Linear(4, 4).weight

    torch.manual_seed(5)
    assert torch.equal(plan.run().weight, torch.nn.Linear(4, 4).weight)


@pytest.mark.parametrize("overlap", [True, False])
def test_drawing_without_rng_is_a_warning(overlap: bool, caplog: pytest.LogCaptureFixture) -> None:
    plan = Plan()

    @plan.stage("preproc_creation")
    def shuffle() -> float:
        return random.random()

    with caplog.at_level(logging.WARNING, "torchett"):
        plan.run(overlap=overlap)
    assert [r.getMessage() for r in caplog.records] == [
        "torchett: random numbers were drawn in stage 'shuffle' without rng=True: "
        "they may depend on timing"
    ]


# What goes wrong -----------------------------------------------------------------------------


class OwnError(Exception):
    pass


def test_the_first_error_in_serial_order_is_raised_and_no_further_stage_starts() -> None:
    """
    early  ├────────✗ OwnError         raised
    late   ├──✗ ValueError
    other  ├──────────────┤            waited for
    never           (after early)
    """
    plan, seen = Plan(), []

    @plan.stage("x-early")
    def early() -> None:
        time.sleep(0.15)
        raise OwnError("early")

    @plan.stage("x-late")
    def late() -> None:
        raise ValueError("late")

    @plan.stage("x-other")
    def other() -> None:
        time.sleep(0.3)
        seen.append("other")

    @plan.stage("x-never", after=[early])
    def never() -> None:
        seen.append("never")

    @plan.stage("x-main", runs="main", after=[late])
    def main() -> None:
        seen.append("main")

    with pytest.raises(OwnError, match="early") as caught:
        plan.run()
    assert seen == ["other"]
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-2:] == ["run", "early"]
    assert caught.value.__context__ is None
    assert plan.last is not None
    assert {one.name for one in plan.last.stages} == {"early", "late", "other"}


@pytest.mark.parametrize("runs", ["main", "thread"])
def test_an_error_on_main_or_on_a_thread_is_raised(runs: Runs) -> None:
    plan = Plan()

    @plan.stage("x-bad", runs=runs)
    def bad() -> None:
        sys.exit(4)

    with pytest.raises(SystemExit) as caught:
        plan.run()
    assert caught.value.code == 4


def test_an_error_in_a_process_keeps_its_type_and_its_traceback() -> None:
    plan = Plan()
    plan.stage("x-bad", runs="process")(failing_process)
    with pytest.raises(KeyError, match="in there") as caught:
        plan.run()
    assert "in failing_process" in caught.value.__notes__[0]


def test_a_process_that_dies_is_an_error() -> None:
    plan = Plan()
    plan.stage("x-bad", runs="process")(dying_process)
    with pytest.raises(RuntimeError, match="'dying_process' died with exit code 3"):
        plan.run()


INTERRUPTED = """
import signal, time, torchett as ett
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in background
plan = ett.Plan()

@plan.stage("x-forever")
def forever():
    print("up", flush=True)
    time.sleep(60)

try:
    plan.run()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_a_plan_at_once() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"ETT_RUNS": "/nonexistent/ett"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=30)
    assert (rest, process.returncode) == ("interrupted\n", 0)


def one(a: object) -> None: ...


def two(a: object, one: object) -> None: ...


def test_a_plan_that_cannot_run_is_refused_with_one_line() -> None:
    plan = Plan()
    with pytest.raises(ValueError, match=r"no start account 'data_wait': .* or x-data_wait"):
        plan.stage("data_wait")
    with pytest.raises(ValueError, match="runs='fork': expected 'thread', 'process' or 'main'"):
        plan.stage("x-a", runs="fork")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'one' is after 'two', not a stage of this plan"):
        plan.stage("x-a", after=[two])(one)
    with pytest.raises(ValueError, match=r"'one' takes \(a\), but its arguments are .* after=\[\]"):
        plan.stage("x-a")(one)
    with pytest.raises(ValueError, match=r"takes \(a, one\), but .* after=\[one, a\]"):
        plan.stage("x-a", after=["one", "a"])(two)
    with pytest.raises(ValueError, match=r"move .*<lambda> to the top level of its module"):
        plan.stage("x-a", runs="process")(lambda: None)
    plan.stage("x-a", after=["nowhere"])(one)
    with pytest.raises(ValueError, match="a second stage 'one'"):
        plan.stage("x-a", after=["nowhere"])(one)
    with pytest.raises(ValueError, match="stage 'one' is after 'nowhere': not a stage of one"):
        plan.run()


def test_a_plan_is_not_over_between_a_stage_and_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The main thread may wake (another stage has ended) just before the next one is started."""
    perform = Crew._perform

    def slowly(self: Crew, stage: Stage) -> None:
        perform(self, stage)
        with self._turn:
            self._turn.notify_all()
        time.sleep(0.05)

    monkeypatch.setattr(Crew, "_perform", slowly)
    plan = Plan()
    plan.stage("x-first")(_named("first", 1))

    @plan.stage("x-second", after=["first"])
    def second(first: int) -> int:
        return first + 1

    assert plan.run().second == 2


def test_a_stage_may_name_some_arguments_and_take_the_rest_as_args() -> None:
    plan = Plan()
    for number in range(3):
        plan.stage(f"x-{number}")(_named(f"n{number}", number))

    @plan.stage("x-sum", after=["n0", "n1", "n2"])
    def total(n0: int, *others: int) -> list[int]:
        return [n0, *others]

    assert plan.run().total == [0, 1, 2]
    with pytest.raises(ValueError, match=r"takes \(a, one\), but .* after=\[a\]"):
        plan.stage("x-a", after=["a"])(lambda a, one, *others: None)


def _named(name: str, result: int) -> Callable[[], int]:
    def stage() -> int:
        return result

    stage.__name__ = name
    return stage


def test_stages_that_wait_for_each_other_are_named() -> None:
    stages = [
        Stage(name="z", account="x-z"),
        Stage(name="a", account="x-a", after=("b",)),
        Stage(name="b", account="x-b", after=("z", "c")),
        Stage(name="c", account="x-c", after=("b",)),
    ]
    with pytest.raises(ValueError, match="stages wait for each other: b → c → b"):
        serial_order(stages)


# The record ----------------------------------------------------------------------------------


def test_every_instant_of_a_run_is_in_the_foreground_once() -> None:
    plan, spans = sleepers(seconds=0.02), Spans()
    plan.run(record=kept(spans))
    run = plan.last
    assert run is not None
    foreground = [(t0, t1) for _, t0, t1, background in spans if not background]
    assert foreground[0][0] == run.t0_ns
    assert foreground[-1][1] == run.t1_ns
    assert all(a[1] == b[0] for a, b in pairwise(foreground))
    assert sum(t1 - t0 for t0, t1 in foreground) == run.wall_ns
    assert {account for account, _, _, background in spans if background} == {
        "preproc_creation",
        "process_group_init",
    }


def test_a_failed_run_is_recorded_and_a_recorder_that_fails_is_not_raised() -> None:
    plan, spans = Plan(), Spans()

    @plan.stage("x-bad")
    def bad() -> None:
        raise OwnError

    with pytest.raises(OwnError):
        plan.run(record=kept(spans))
    assert [(account, background) for account, _, _, background in spans] == [("x-bad", False)]
    with pytest.raises(OwnError):
        plan.run(record=lambda *_: 1 / 0)  # type: ignore[arg-type,return-value]


STAGES = st.lists(
    st.tuples(
        st.sampled_from(["thread", "process", "main"]),
        st.booleans(),
        st.sets(st.integers(0, 7), max_size=3),
        st.integers(1, 50),
    ),
    min_size=1,
    max_size=8,
)


@given(STAGES)
@settings(max_examples=200, deadline=None)
def test_any_schedule_is_tiled_by_its_critical_path(drawn: list[Any]) -> None:
    """In a run exactly by the rules, the pieces sum to its length; each stage has one span."""
    stages, took = [], {}
    for i, (runs, rng, after, units) in enumerate(drawn):
        needs = tuple(f"s{j}" for j in sorted(after) if j < i)
        stages.append(Stage(name=f"s{i}", account="x-s", runs=runs, rng=rng, after=needs))
        took[f"s{i}"] = units
    run = played(stages, took)
    assert run.wall_ns == makespan(stages, took) <= run.serial_ns
    assert sum(one.took_ns for one in run.critical_path) == run.wall_ns
    spans = Spans()
    record_run(run, kept(spans))
    assert sum(t1 - t0 for _, t0, t1, background in spans if not background) == run.wall_ns
    assert len(spans) == len(stages)
    assert PlanRun.from_json(run.to_json()) == run
    following = run.next_overlap
    assert following is None or 0 < following.won_ns < run.wall_ns


def played(stages: list[Stage], took: dict[str, int]) -> PlanRun:
    """A run by the rules, found tick by tick."""
    from torchett.levers.startup.plan.schedule import may_start

    waiting, running, now = serial_order(stages), list[Stage](), 0
    begun: dict[str, int] = {}
    done: set[str] = set()
    while waiting or running:
        for stage in [s for s in running if begun[s.name] + took[s.name] == now]:
            running.remove(stage)
            done.add(stage.name)
        for stage in list(waiting):
            if may_start(stage, waiting=waiting, running=running, done=done):
                waiting.remove(stage)
                running.append(stage)
                begun[stage.name] = now
        now += 1 if running else 0
    runs = [
        StageRun(stage=s, t0_ns=begun[s.name], t1_ns=begun[s.name] + took[s.name])
        for s in serial_order(stages)
    ]
    return PlanRun(t0_ns=0, t1_ns=now, stages=tuple(runs))


def test_the_next_best_overlap_is_named() -> None:
    """
    group ├──┤ main      model waits for group, though it need not: 3 s of 9
    model    ├─────┤
    """
    stages = [
        Stage(name="group", account="process_group_init", runs="main"),
        Stage(name="model", account="train_module_creation", after=("group",)),
        Stage(name="loader", account="preproc_creation"),
    ]
    overlap = next_overlap(stages, {"group": 3 * S, "model": 6 * S, "loader": 4 * S})
    assert overlap is not None
    assert (str(overlap), overlap.won_ns) == ("'model' without waiting for 'group'", 3 * S)
    assert next_overlap(stages[:1], {"group": S}) is None
    stages[1] = replace(stages[1], given=True)  # `def model(group)` cannot do without
    assert next_overlap(stages, {"group": 3 * S, "model": 6 * S, "loader": 4 * S}) is None


def test_the_drawing_marks_the_critical_path_and_shows_the_gain() -> None:
    stages = [
        Stage(name="group", account="process_group_init", runs="main"),
        Stage(name="model", account="train_module_creation", after=("group",)),
        Stage(name="loader", account="preproc_creation"),
    ]
    run = played(stages, {"group": 3, "model": 6, "loader": 4})
    run = PlanRun.from_json(
        {
            **run.to_json(),
            "t1_ns": 9 * S,
            "stages": [
                {**one, "t0_ns": one["t0_ns"] * S, "t1_ns": one["t1_ns"] * S}
                for one in run.to_json()["stages"]
            ],
        }
    )
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(draw(run))
    text = console.export_text()
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["group", "model", "loader"]
    assert ["◆" in line for line in lines[1:4]] == [True, True, False]
    assert "13.0 s of work in 9.0 s: overlapping won 4.0 s (31%)" in text
    assert "next: 'model' without waiting for 'group' would win 3.0 s" in text


# Imports -------------------------------------------------------------------------------------


def test_background_imports_load_swallow_errors_and_are_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torchett.record import api

    spans = Spans()
    monkeypatch.setattr(
        api,
        "past_span",
        lambda account, t0, t1, background: spans.append((account, t0, t1, background)),
        raising=False,
    )
    (tmp_path / "ett_slow_module.py").write_text("import time; time.sleep(0.2); here = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    thread = background_imports("no.such.module", "ett_slow_module")
    import ett_slow_module  # type: ignore[import-not-found]  # waits for the module's lock

    assert ett_slow_module.here == 1
    thread.join(10)
    assert [(account, background) for account, _, _, background in spans] == [("imports", True)]
