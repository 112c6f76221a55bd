"""Every compile is a span of the right account, and a fact with its reason and function."""

import _thread
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kept import Kept

from torchett.levers.compile.adapter import events
from torchett.levers.compile.observe import phases, watch
from torchett.levers.compile.observe.facts import Compile, from_json, keep, stray_facts
from torchett.levers.compile.tuning.kernels import kernel_costs
from torchett.record import api
from torchett.record.patches import installed
from torchett.record.plugins import SITE
from torchett.runs.reader import RunReader


def double(x: Any, scale: int = 2) -> Any:
    return (x * scale).sum()


def test_compiles_before_the_first_step_are_start_and_later_ones_are_recompiles(
    record: Kept, torch: Any
) -> None:
    run = torch.compile(double, backend="eager")
    with record.step(0):
        run(torch.ones(4))
    with record.step(1):
        run(torch.ones(5))
        run(torch.ones(6), 3)
    found = record.compiles()
    assert [(one.id, one.part, one.again) for one in found] == [
        ("0/0", "forward", False), ("0/1", "forward", True), ("0/2", "forward", True),
    ]  # fmt: skip
    assert found[1].reasons[0].startswith("0/0: tensor 'x' size mismatch at index 0. expected 4")
    assert found[2].reasons[0].startswith("0/1: scale == 2")
    assert dict(found[2].sources) == {"L['x']": [0], "L['scale']": None}
    assert (found[0].name, found[0].file) == ("double", __file__)
    assert found[0].line == double.__code__.co_firstlineno
    assert found[0].code == found[2].code is not None
    for one in found:
        assert sum(one.by_ns.values()) == one.ns > 0
        assert one.by_ns["dynamo"] > one.by_ns["backend"] > 0
    accounts = record.accounts()
    assert accounts["pt2_compile"] == pytest.approx(found[0].ns / 1e9, abs=0.05)
    assert accounts["recompile"] == pytest.approx((found[1].ns + found[2].ns) / 1e9, abs=0.05)


def test_a_backward_is_a_compile_of_its_own_with_its_forwards_function(
    record: Kept, torch: Any
) -> None:
    run = torch.compile(double, backend="aot_eager")
    x = torch.ones(4, requires_grad=True)
    run(x).backward()
    run(x).backward()
    found = record.compiles()
    assert {(one.part, one.name, one.background) for one in found} == {
        ("forward", "double", False), ("backward", "double", False),
    }  # fmt: skip
    assert x.grad is not None


def test_a_reset_of_dynamo_does_not_end_the_watch(record: Kept, torch: Any) -> None:
    run = torch.compile(double, backend="eager")
    run(torch.ones(4))
    torch._dynamo.reset()
    run(torch.ones(4))
    assert [one.id for one in record.compiles()] == ["0/0", "0/0"]


def test_a_compile_that_fails_is_recorded_with_its_reason(record: Kept, torch: Any) -> None:
    def refuse(graph: Any, inputs: Any) -> Any:
        raise ValueError("not this one")

    with pytest.raises(Exception, match="not this one"):
        torch.compile(double, backend=refuse)(torch.ones(4))
    (found,) = record.compiles()
    assert "not this one" in (found.failed or "")


def test_the_recompile_limit_is_recorded_with_its_function(record: Kept, torch: Any) -> None:
    run = torch.compile(double, backend="eager", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2, automatic_dynamic_shapes=False):
        for size in (4, 5, 6, 7):
            run(torch.ones(size))
    found = record.compiles()
    assert [one.id for one in found if not one.failed] == ["0/0", "0/1"]
    last = found[-1]
    assert last.failed is not None
    assert "recompile_limit" in last.failed
    assert last.name == "double"
    assert len(last.reasons) == 2


def on_a_thread(work: Callable[[], Any], started_by_python: bool) -> None:
    """Run it on a thread that Python started, or on one that it did not, and wait."""
    over = threading.Event()

    def run() -> None:
        try:
            work()
        finally:
            over.set()

    if started_by_python:
        threading.Thread(target=run, name="ett-warm-up").start()
    else:
        _thread.start_new_thread(run, ())
    assert over.wait(60)


def test_a_compile_on_another_thread_of_python_is_in_the_background(
    record: Kept, torch: Any
) -> None:
    run = torch.compile(double, backend="eager")
    with record.step(0):
        on_a_thread(lambda: run(torch.ones(4)), started_by_python=True)
    (found,) = record.compiles()
    assert found.background
    accounts = record.accounts()
    assert accounts.get("pt2_compile", 0) == 0
    assert accounts["unattributed"] + accounts["effective"] > found.ns / 1e9 * 0.9


def test_a_trainer_that_is_not_the_main_thread_is_the_one_that_opened_the_record(
    record: Kept, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = torch.compile(double, backend="eager")

    def train() -> None:
        monkeypatch.setattr(api, "_trainer", threading.get_ident())
        run(torch.ones(4))

    on_a_thread(train, started_by_python=True)
    run(torch.ones(4), 7)
    assert [one.background for one in record.compiles()] == [False, True]


def test_a_backward_that_the_trainer_waits_for_stops_the_trainer(record: Kept, torch: Any) -> None:
    """On a GPU the engine's thread compiles while the trainer waits in loss.backward()."""
    run = torch.compile(double, backend="eager")

    def _engine_run_backward(work: Callable[[], Any]) -> None:  # as torch calls it
        on_a_thread(work, started_by_python=False)

    _engine_run_backward(lambda: run(torch.ones(4)))
    (found,) = record.compiles()
    assert not found.background
    assert record.accounts()["pt2_compile"] > 0


def test_a_backward_that_another_thread_waits_for_is_in_the_background(
    record: Kept, torch: Any
) -> None:
    run = torch.compile(double, backend="eager")

    def _engine_run_backward(work: Callable[[], Any]) -> None:
        on_a_thread(work, started_by_python=False)

    on_a_thread(lambda: _engine_run_backward(lambda: run(torch.ones(4))), started_by_python=True)
    (found,) = record.compiles()
    assert found.background


def test_an_error_of_the_watcher_never_reaches_the_compile(
    record: Kept, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, *args: Any) -> None:
        raise RuntimeError("ours")

    for name in ("began", "ended", "happened", "measured", "failed_guards"):
        monkeypatch.setattr(watch.Watcher, name, broken)
    run = torch.compile(double, backend="eager")
    assert run(torch.ones(4)).item() == 8
    assert run(torch.ones(5)).item() == 10


def test_choosing_between_templates_is_recorded_for_each(
    record: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(0, 10**10, 10**9))
    monkeypatch.setattr(watch, "now_ns", lambda: next(ticks))
    watcher = watch.Watcher()
    phases = ("dynamo", "mm_template_precompiling"), ("mm_template_autotuning",)
    for begun in phases:
        for phase in begun:
            watcher.began(phase, "0/0")
        watcher.ended(begun[-1])
    watcher.measured(type("Metrics", (), {"graph_op_count": 1}))
    watcher.ended("dynamo")
    (cost,) = kernel_costs(RunReader(record.run).poll().facts("kernel"))
    assert (cost.name, cost.tuning_s, cost.compiling_s) == ("mm (template)", 1.0, 1.0)
    assert cost.benchmarks == 1


def test_phases_without_an_end_do_not_change_the_others(
    record: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(0, 1000, 10))
    monkeypatch.setattr(watch, "now_ns", lambda: next(ticks))
    watcher = watch.Watcher()
    watcher.ended("never begun")
    watcher.began("guard_collective", None)  # timed like a compile, but none
    watcher.ended("guard_collective")
    watcher.began("dynamo", "3/0")  # 0
    watcher.began("backend_compile", None)  # 10
    watcher.began("async_compile.wait", None)  # 20
    watcher.began("something new", None)  # 30: counts for what is around it
    watcher.ended("backend_compile")  # 40
    kernels = '[["triton_mm", 1500000], ["triton_poi", 2500]]'
    metrics = {"graph_op_count": 2, "triton_kernel_compile_times_us": kernels}
    watcher.measured(type("Metrics", (), metrics))
    watcher.ended("dynamo")  # 50
    (found,) = record.compiles()
    assert dict(found.by_ns) == {"dynamo": 20, "backend": 10, "triton": 20}
    costs = kernel_costs(RunReader(record.run).poll().facts("kernel"))
    assert [(one.name, one.compiling_s) for one in costs] == [
        ("triton_mm", 1.5), ("triton_poi", 0.0025),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("phase", "cause"),
    [
        ("mm_template_autotuning", "autotune"),
        ("pgo.get_local_code_state", "cache_load"),
        ("compile_attempt_3", "around"),
    ],
)
def test_a_phase_has_a_cause(phase: str, cause: str) -> None:
    assert phases.cause_of(phase, "around") == cause


def test_every_phase_with_a_cause_exists_in_this_torch(torch: Any) -> None:
    """A renamed phase would count for the phase around it without a sign."""
    folder = Path(torch.__file__).parent
    source = "".join(
        path.read_text(errors="replace")
        for room in ("_dynamo", "_inductor", "_functorch", "fx")
        for path in (folder / room).rglob("*.py")
    )
    missing = {phase for phase in phases.CAUSE_OF if f'"{phase}"' not in source}
    assert missing <= {"CachingAutotuner.combo_sequential_autotune"}  # since 2.12


def test_all_names_that_the_adapter_uses_exist_in_this_torch(record: Kept, torch: Any) -> None:
    import torch._dynamo.convert_frame
    import torch._dynamo.utils

    for owner, name in (
        (torch._dynamo.utils.ChromiumEventLogger, "log_event_start"),
        (torch._dynamo.utils.ChromiumEventLogger, "log_event_end"),
        (torch._dynamo.utils.ChromiumEventLogger, "log_instant_event"),
        (torch._dynamo.utils, "add_compilation_metrics_to_chromium"),
        (torch._dynamo.convert_frame, "get_and_maybe_log_recompilation_reasons"),
    ):
        assert hasattr(getattr(owner, name), "__wrapped__"), name
    events.stop_listening()
    assert not hasattr(torch._dynamo.utils.ChromiumEventLogger.log_event_end, "__wrapped__")
    assert not [patch for patch in installed() if patch.patch.lever == "compile-watch"]


def test_a_function_that_moved_keeps_its_hash(tmp_path: Path) -> None:
    body = "def f(x):\n    return x + 1\n"
    (tmp_path / "a.py").write_text(body)
    (tmp_path / "b.py").write_text("# moved\n\n" + body + "\ny = 2\n")
    (tmp_path / "c.py").write_text(body.replace("1", "2"))
    a, b, c = (str(tmp_path / f"{name}.py") for name in "abc")
    assert watch.source_hash(a, 1) == watch.source_hash(b, 3) != watch.source_hash(c, 1)
    assert watch.source_hash(str(tmp_path / "none.py"), 1) is None


def test_facts_are_read_back_unchanged_and_others_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Compile(id="0/1", t0_ns=5, t1_ns=9, by_ns={"dynamo": 4}, reasons=("a",), again=True)
    assert from_json(json.loads(json.dumps(one.to_json()))) == one
    for bad in (None, [], {}, {"id": 3}, {"id": "0/0", "t0_ns": 5, "t1_ns": 1},
                {"id": "0/0", "t0_ns": "x"}, {"id": "0/0", "reasons": 7}):  # fmt: skip
        assert from_json(bad) is None
    monkeypatch.setenv("ETT_RUN", str(tmp_path))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr(api, "_recorder", None)
    keep("compile", one.to_json())
    keep("kernel", {"kernel": "mm"})
    with open(next(tmp_path.glob("compiles-3-*.jsonl")), "a") as file:
        file.write('{"id": "0/')  # killed here
    assert list(stray_facts(tmp_path, "compile")) == [(0, 3, one.to_json())]
    assert list(stray_facts(tmp_path, "kernel")) == [(0, 3, {"kernel": "mm"})]


SCRIPT = """
import torch
def f(x): return (x * 2).sum()
g = torch.compile(f, backend="eager")
for size in (4, 5): g(torch.ones(size))
"""


@pytest.mark.e2e
@pytest.mark.parametrize("knows_us", [False, True])
def test_a_script_under_ett_run_is_watched_with_and_without_our_import(
    tmp_path: Path, knows_us: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(("import torchett; torchett.init()\n" if knows_us else "") + SCRIPT)
    env = os.environ | {"ETT_RUNS": str(tmp_path / "runs")}
    ett = [sys.executable, "-m", "torchett.cli.main"]
    done = subprocess.run(
        [*ett, "run", "--job", "job", "--", str(script)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    done = subprocess.run([*ett, "report", "job", "--json"], env=env, capture_output=True)
    found = json.loads(done.stdout)["compile"]
    assert found["graphs"] == 2
    assert found["functions"][0]["reason"].startswith("tensor 'x' size mismatch")
    assert bool(list((tmp_path / "runs" / "job").glob("compiles-*"))) is not knows_us
    page = subprocess.run([*ett, "report", "job"], env=env, capture_output=True, text=True).stdout
    assert "2 compiles of f (" in page


def test_init_alone_installs_the_watcher(tmp_path: Path) -> None:
    code = (
        "import torchett, torchett.record.plugins as b; torchett.init();"
        "print(sorted(b._installed), sorted(b._waiting))"
    )
    env = os.environ | {"ETT_RUNS": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "torchett.levers.compile.observe.watch" in done.stdout
    assert "torch._dynamo.utils" in done.stdout
    assert SITE not in done.stderr
