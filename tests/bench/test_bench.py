"""A bench: faults written down beforehand, levers switched one by one, jobs driven to their end."""

import io
import os
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from torchett.bench import pulse
from torchett.bench.levers import LEVERS, NAMES, run_options, script_options
from torchett.bench.schedule import SCHEDULES, schedule
from torchett.bench.side import Side, _run
from torchett.bench.workload import WORKLOADS, Workload
from torchett.model.errors import InputError
from torchett.report.bench import lever_report


def test_faults_lie_at_their_share_of_the_steps_and_on_ranks_that_exist() -> None:
    words = SCHEDULES["ranks"].words(1000, 1)
    assert words == ["kill:0@150", "kill:0@330", "kill:0@500", "kill:0@680", "kill:0@850"]
    assert "kill:1@150" in SCHEDULES["mixed"].words(1000, 2)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_understood_by_the_workloads(name: str) -> None:
    examples = Path(__file__).parents[2] / "examples"
    sys.path.insert(0, str(examples))
    try:
        faults = pytest.importorskip("common.faults", exc_type=ImportError)
        parsed = [faults.Fault.parse(word) for word in SCHEDULES[name].words(600, 2)]
    finally:
        sys.path.remove(str(examples))
    assert len(parsed) >= SCHEDULES[name].failures >= 5


def test_an_unknown_schedule_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="expected a schedule of ranks, mixed, bunched, found 'x'"):
        schedule("x")


def test_the_stock_script_saves_at_its_own_best_interval() -> None:
    job = Workload(name="gpt", preset="tiny", ranks=1, steps=1000, step_s=0.1, blocking_s=0.5)
    assert job.mtbf_s(5) == 20
    assert job.save_every(5) == 45  # √(2 · 0.5 s · 20 s) = 4.47 s


def test_every_lever_can_be_switched_off() -> None:
    every, none = frozenset(NAMES), frozenset[str]()
    assert script_options(every) == []
    left_out = set(script_options(none)[1].split(","))
    assert left_out == {lever.word for lever in LEVERS if lever.word}
    for lever in LEVERS:
        without = run_options(every - {lever.name}, "/s"), script_options(every - {lever.name})
        assert without != (run_options(every, "/s"), script_options(every)), lever.name


def test_a_lever_that_does_nothing_alone_is_tried_with_what_it_needs() -> None:
    [interval] = [lever for lever in LEVERS if lever.name == "interval"]
    left_out = script_options(interval.needs | {"interval"})[1].split(",")
    assert {"interval", "checkpoints"}.isdisjoint(left_out)  # train_ett.py saves by itself
    assert {name for lever in LEVERS for name in lever.needs} <= set(NAMES)


def test_the_stock_side_runs_the_stock_script_as_it_is(tmp_path: Path) -> None:
    side = Side(name="stock", levers=None, folder=tmp_path)
    command = side.command(WORKLOADS["quick"], SCHEDULES["mixed"])
    assert command[command.index("--") + 1 :][-1].count("@")
    assert "--as-is" in command
    assert any(word.endswith("gpt/train.py") for word in command)
    assert "--compile-cache" not in command


def test_a_job_without_failures_is_the_same_job(tmp_path: Path) -> None:
    side = Side(name="unbroken", levers=None, folder=tmp_path)
    whole = side.command(WORKLOADS["quick"], None)
    assert "--fault" not in whole
    assert whole[whole.index("--max-restarts") + 1] == "0"
    broken = side.command(WORKLOADS["quick"], SCHEDULES["mixed"])
    assert whole[whole.index("--preset") :][:6] == broken[broken.index("--preset") :][:6]


@pytest.mark.parametrize(
    ("same", "said"), [(True, "the same bits"), (False, "NOT the same"), (None, "not compared")]
)
def test_levers_are_shown_with_what_became_of_the_weights(same: bool | None, said: str) -> None:
    row = {"lever": "fast batch", "needs": [], "alone_s": 5.9, "left_out_s": -2.5}
    row |= {"alone_ett_percent": 44.2, "left_out_ett_percent": 71.4, "same_weights": same}
    console = Console(file=io.StringIO(), width=120)
    console.print(lever_report([row], same))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert f"fast batch +5.9 44.2% -2.5 71.4% {said}" in " ".join(shown.split())
    assert f"against a stock job without failures: {said}" in shown


def script(text: str) -> list[str]:
    return [sys.executable, "-u", "-c", text]


def test_a_lost_node_takes_everything_with_it() -> None:
    text = """if True:
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print("child", child.pid)
        print("fault node at step 3")
        time.sleep(60)
    """
    log = io.StringIO()
    code, _, fault = _run(script(text), os.environ, log)
    assert (code, fault) == (None, "node")
    pid = int(log.getvalue().split()[1])
    over = time.monotonic() + 5
    while time.monotonic() < over and Path(f"/proc/{pid}/cmdline").read_bytes():
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}/cmdline").exists() or not (
        Path(f"/proc/{pid}/cmdline").read_bytes()
    )


def test_a_preempted_job_may_still_say_and_do_something() -> None:
    text = """if True:
        import signal, sys, time
        def leave(number, frame):
            print("saved")
            sys.exit(3)
        signal.signal(signal.SIGTERM, leave)
        print("fault preempt at step 3")
        while True:
            time.sleep(0.05)
    """
    log = io.StringIO()
    assert _run(script(text), os.environ, log)[::2] == (None, "preempt")
    assert "saved" in log.getvalue()


def test_a_job_that_ends_by_itself_gives_its_code_and_digest() -> None:
    digest = "ab" * 32
    code, said, fault = _run(script(f"print('digest {digest}')"), os.environ, io.StringIO())
    assert (code, said, fault) == (0, digest, None)


def test_a_machine_that_changed_between_the_sides_is_told_of() -> None:
    assert pulse.unsteady(1.0e-3, 1.09e-3) is None
    assert pulse.unsteady(None, 1e-3) is None
    said = pulse.unsteady(0.70e-3, 0.91e-3)
    assert said is not None
    assert said.startswith("the machine was 30% slower in torchett's turn than in stock's")
    assert "took 0.70 ms, then 0.91" in said
    assert "30% faster" in (pulse.unsteady(1.0e-3, 0.7e-3) or "")


def test_the_pulse_is_taken_beside_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "_EVERY_S", 0.01)
    with pulse.Pulse() as taken:
        assert taken.seconds is None or taken.seconds > 0
        until = time.monotonic() + 10
        while taken.seconds is None and time.monotonic() < until:
            time.sleep(0.01)
    assert taken.seconds is not None
    assert taken.seconds > 0
