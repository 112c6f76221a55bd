"""A bench: faults fixed beforehand, levers switched one by one, jobs run to their end."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from torchett.bench import pulse
from torchett.bench.levers import LEVERS, NAMES, UNBROKEN, run_options, script_options, sides
from torchett.bench.schedule import SCHEDULES, schedule
from torchett.bench.side import Finished, Side, _run, recalled, remember
from torchett.bench.verdict import lever_rows, measured_apart
from torchett.bench.workload import WORKLOADS, Workload
from torchett.cli.bench import bench
from torchett.cli.exchange import import_
from torchett.model.errors import InputError


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


def test_faults_are_described_in_sentences() -> None:
    assert SCHEDULES["mixed"].lines(3000, 2) == [
        "rank 1 killed at step 450",
        "node lost at step 1,050",
        "preempted at step 1,800",
        "rank 0 killed at step 2,550",
        "start 3 fails",
        "data 6 s late in start 5",
    ]


def test_every_lever_can_be_switched_off() -> None:
    every, none = frozenset(NAMES), frozenset[str]()
    assert script_options(every) == []
    left_out = set(script_options(none)[1].split(","))
    assert left_out == {lever.word for lever in LEVERS if lever.word}
    for lever in LEVERS:
        without = run_options(every - {lever.name}, "/s"), script_options(every - {lever.name})
        assert without != (run_options(every, "/s"), script_options(every)), lever.name


def test_a_lever_that_does_nothing_alone_runs_with_the_levers_it_needs() -> None:
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


def test_each_lever_is_compared_with_all_and_with_none_or_what_it_needs() -> None:
    wasted = dict.fromkeys(sides(each=True), 100.0)
    wasted |= {"torchett": 40.0, "no-lever": 110.0, "only-plan": 90.0, "without-plan": 55.0}
    wasted |= {"only-checkpoints": 97.0, "only-checkpoints-interval": 95.0}
    digests = dict.fromkeys(wasted, "same") | {"without-plan": "other", "only-fast_batch": None}
    outcomes: Any = {
        name: SimpleNamespace(
            wasted_s=seconds, digest=digests[name], ledger=SimpleNamespace(ett_percent=50.0)
        )
        for name, seconds in wasted.items()
    }
    rows = {row["lever"]: row for row in lever_rows(outcomes)}
    assert len(rows) == len(LEVERS)
    assert (rows["start-up plan"]["alone_s"], rows["start-up plan"]["left_out_s"]) == (20.0, 15.0)
    assert rows["auto interval"]["alone_s"] == 2.0
    assert rows["auto interval"]["needs"] == ["checkpoints"]
    same = [rows[t]["same_weights"] for t in ("start-up plan", "fast batch", "compile cache")]
    assert same == [False, None, True]


def test_without_levers_there_are_two_sides() -> None:
    assert sides(each=False) == {"stock": None, "torchett": frozenset(NAMES)}
    assert sides(each=True)["no-lever"] == frozenset()


def test_a_finished_side_is_not_run_again(tmp_path: Path) -> None:
    side = Side(name="stock", levers=None, folder=tmp_path / "stock")
    job, wrong = WORKLOADS["quick"], SCHEDULES["mixed"]
    assert recalled(side, job, wrong) is None
    side.folder.mkdir()
    facts: dict[str, Any] = {"digest": "ab", "starts": 3, "pulse_s": 0.5}
    done = Finished(side=side, run=side.folder / "runs" / "stock", **facts)
    remember(done, job, wrong)
    assert recalled(side, job, wrong) == done
    assert recalled(side, job, None) is None
    assert recalled(side, replace(job, steps=20), wrong) is None
    (side.folder / "done.json").write_text("{}")
    assert recalled(side, job, wrong) is None


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    side = Side(name="torchett", levers=frozenset(), folder=tmp_path / "new" / "torchett")
    side.make_room()
    side.folder.mkdir()
    side.clear()  # of a bench that had not begun
    assert not side.folder.exists()
    side.folder.mkdir()
    (side.folder / "model.py").write_text("precious")
    (side.folder / "output.log").touch()
    with pytest.raises(InputError, match=r"new or an earlier bench's, found .*torchett"):
        side.clear()
    assert (side.folder / "model.py").read_text() == "precious"
    (side.folder / "ett-bench.log").touch()
    side.clear()
    side.folder.write_text("a file")
    with pytest.raises(InputError, match="name one of its own"):
        side.make_room()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--folder", "/proc/none"],
            "ett: ett bench: expected a --folder to write to, found /proc",
        ),
        (["--html", "nowhere/x.html"], "ett: nowhere/x.html: not writable: No such file"),
        (["--html", "."], "ett: .: not writable: Is a directory"),
        (["--schedule", "none"], "ett: ett bench: expected a schedule of ranks, mixed, bunched"),
    ],
)
def test_a_bench_that_cannot_run_is_refused_before_any_side_runs(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(bench, words)
    assert done.exit_code == 2
    assert done.output.startswith(said)
    assert done.output.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_job_for_a_gpu_is_refused_without_one(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = CliRunner().invoke(bench, ["--h200", "--folder", str(tmp_path)])
    assert done.exit_code == 2
    assert "expected a GPU for this size, found none: --quick needs none" in done.output


@pytest.mark.e2e
def test_a_bench_that_is_stopped_ends_its_jobs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torchett.cli.main", "bench", "--folder", str(tmp_path)]
    process = subprocess.Popen(command)
    try:
        until = time.monotonic() + 120
        while len(processes(tmp_path)) < 2:
            assert time.monotonic() < until, "no job began"
            assert process.poll() is None
            time.sleep(0.1)
        process.terminate()
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
        while processes(tmp_path):
            assert time.monotonic() < until, "a job was left behind"
            time.sleep(0.1)
    finally:
        process.kill()


def processes(folder: Path) -> list[str]:
    """Processes with the folder in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def script(text: str) -> list[str]:
    return [sys.executable, "-u", "-c", text]


def test_a_lost_node_ends_all_processes() -> None:
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
    until = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_preempted_job_has_time_to_print_and_to_save() -> None:
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


def test_no_signal_is_sent_to_the_pid_of_a_job_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel may have given its pid to another process."""
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, signal: killed.append(pid))
    assert _run(script("print('done')"), os.environ, io.StringIO()) == (0, None, None)
    assert killed == []


def test_a_change_of_the_machines_speed_between_the_sides_is_reported() -> None:
    assert pulse.unsteady(1.0e-3, 1.09e-3) is None
    assert pulse.unsteady(None, 1e-3) is None
    said = pulse.unsteady(0.70e-3, 0.91e-3)
    assert said is not None
    assert said.startswith("the machine was 30% slower in torchett's turn than in stock's")
    assert "took 0.70 ms, then 0.91" in said
    assert "30% faster" in (pulse.unsteady(1.0e-3, 0.7e-3) or "")


def test_other_weights_are_explained_where_stock_jobs_differ_too() -> None:
    assert "SHAPE_PADDING=0" in (measured_apart(False, on_gpu=True) or "")
    assert measured_apart(False, on_gpu=False) is None
    assert measured_apart(True, on_gpu=True) is None
    assert measured_apart(None, on_gpu=True) is None


def finished_side(folder: Path, name: str, *, wasted_s: float, digest: str | None) -> None:
    """The files of a side after a bench of 20 steps on a GPU."""
    events: list[dict[str, Any]] = [
        {"event": "job", "format": "events/1", "job": name, "ranks": 1},
        {"event": "attempt_start", "attempt": 0, "t": 0.0},
        {"event": "span", "attempt": 0, "rank": 0, "account": "imports", "t0": 0, "t1": wasted_s},
        {"event": "step", "attempt": 0, "rank": 0, "step": 19, "t0": wasted_s, "t1": wasted_s + 9},
        {"event": "attempt_end", "attempt": 0, "t": wasted_s + 9, "outcome": "success"},
    ]
    side = Side(name=name, levers=None, folder=folder / name)
    side.folder.mkdir(parents=True)
    (side.folder / "ett-bench.log").touch()
    file = side.folder / "events.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    run = side.folder / "runs" / name
    assert CliRunner().invoke(import_, [str(file), str(run)]).exit_code == 0
    done = Finished(side=side, run=run, digest=digest, starts=1, pulse_s=0.4e-3 + wasted_s * 1e-5)
    through = None if name == UNBROKEN else SCHEDULES["mixed"]
    remember(done, replace(WORKLOADS["h200"], steps=20), through)


def test_a_finished_bench_is_shown_as_text_json_and_page(tmp_path: Path) -> None:
    finished_side(tmp_path, "stock", wasted_s=8.0, digest="ab" * 32)
    finished_side(tmp_path, "torchett", wasted_s=2.0, digest="cd" * 32)
    words = ["--h200", "--steps", "20", "--folder", str(tmp_path)]
    page = tmp_path / "page.html"
    text = CliRunner().invoke(bench, [*words, "--html", str(page)])
    assert text.exit_code == 0, text.output
    shown = " ".join(text.output.split())
    assert "not training: 8.0 → 2.0 rank-seconds, 75% fewer · final weights: NOT the same" in shown
    assert "mind: the machine was 12% faster in torchett's turn" in shown
    assert "mind: on a GPU, inductor chooses by measurement which matrix products to pad" in shown
    assert "Mind: on a GPU, inductor" in page.read_text()
    assert "<td>start-up plan</td><td>+0.0</td>" in page.read_text()
    told = json.loads(CliRunner().invoke(bench, [*words, "--json"]).stdout)
    assert (told["saved_percent"], told["same_weights"], len(told["mind"])) == (75.0, False, 2)


def test_a_side_that_wastes_more_is_not_said_to_waste_fewer(tmp_path: Path) -> None:
    finished_side(tmp_path, "stock", wasted_s=2.0, digest=None)
    finished_side(tmp_path, "torchett", wasted_s=3.0, digest=None)
    words = ["--h200", "--steps", "20", "--folder", str(tmp_path)]
    assert "50% more · final weights: not compared" in CliRunner().invoke(bench, words).output


def test_levers_are_shown_with_whether_the_weights_are_the_same(tmp_path: Path) -> None:
    digests = {"without-fast_batch": "cd" * 32, "only-plan": None}
    wasted = {"stock": 8.0, "no-lever": 9.0, "only-fast_batch": 6.5, "without-fast_batch": 1.0}
    for name in sides(each=True):
        digest = digests.get(name, "ab" * 32)
        finished_side(tmp_path, name, wasted_s=wasted.get(name, 2.0), digest=digest)
    page = tmp_path / "page.html"
    words = ["--h200", "--steps", "20", "--folder", str(tmp_path), "--levers", "--html", str(page)]
    done = CliRunner().invoke(bench, words)
    assert done.exit_code == 0, done.output
    shown = " ".join(done.output.split())
    assert "fast batch +2.5 58.1% -1.0 90.0% NOT the same" in shown
    assert "start-up plan +7.0 81.8% +0.0 81.8% not compared" in shown
    assert "compile cache +7.0 81.8% +0.0 81.8% the same bits" in shown
    assert "against a stock job without failures: the same bits" in shown
    assert "<td>fast batch</td><td>+2.5</td><td>58.1%</td>" in page.read_text()
    assert "Final weights, against a stock job without failures: the same bits." in page.read_text()


def test_the_pulse_is_measured_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "_EVERY_S", 0.01)
    with pulse.Pulse() as taken:
        assert taken.seconds is None or taken.seconds > 0
        until = time.monotonic() + 10
        while taken.seconds is None and time.monotonic() < until:
            time.sleep(0.01)
    assert taken.seconds is not None
    assert taken.seconds > 0
