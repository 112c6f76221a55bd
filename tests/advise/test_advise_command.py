"""`ett advise`: advice on a run, its numbers, its outcome, and the score of all outcomes."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from advised_jobs import JobText, often_killed, slow_to_start
from click.testing import CliRunner

from torchett.advise.kept import CheckedPrediction, Kept, KeptPrediction
from torchett.advise.priors import Range
from torchett.advise.score import scores
from torchett.cli.advise.facts import _on, _workers, known_of
from torchett.cli.main import main
from torchett.runs.reader import RunReader


def ett(*words: str) -> Any:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs: one with a slow start, and the same job without the compile."""
    folder = tmp_path / "runs"
    folder.mkdir()
    monkeypatch.setenv("ETT_RUNS", str(folder))
    cached = JobText().start(0, 0).span(0, "imports", 0, 10).span(0, "pt2_compile", 10, 13)
    cached.steps(0, 0, 500, 13, 0.1).end(0, 73, "success")
    for name, job in (("slow", slow_to_start()), ("cached", cached), ("killed", often_killed())):
        file = job.write(tmp_path / f"{name}.jsonl")
        ett("import", str(file), name, "--format", "events")
    return folder


def test_advice_is_a_table_and_one_object(runs: Path) -> None:
    told = ett("advise", "slow").output
    assert "compile-cache" in told
    assert "ett run --compile-cache /shared/compiled -- …" in told
    found = json.loads(ett("advise", "slow", "--json").output)
    best = found["best"]
    assert best["levers"][0] == "compile-cache"
    assert best["points"]["low"] < best["points"]["mid"] < best["points"]["high"]
    assert found["not_enough_data"]["interval"].startswith("not enough data")
    assert found["nothing_to_win"]["publish"] == "nothing was published by the GPU job"


def test_why_prints_the_numbers_of_the_ledger_and_the_measurements(runs: Path) -> None:
    told = ett("advise", "killed", "--why", "interval").output
    assert "failures without notice" in told
    found = json.loads(ett("advise", "slow", "--why", "compile-cache", "--json").output)
    assert found["prediction"]["numbers"]["pt2_compile, rank-s"] == 30
    assert found["priors"][0]["source"].startswith("Compile cache: cuts of 89.2")
    told = ett("advise", "slow", "--why", "publish").output
    assert told == "publish: nothing was published by the GPU job\n"


def test_a_prediction_is_checked_kept_and_scored(runs: Path) -> None:
    ett("advise", "slow")
    words = ("--check", "slow", "cached", "--lever", "compile-cache", "--json")
    found = json.loads(ett("advise", *words).output)
    assert found["seconds"] == pytest.approx(27)
    assert (found["inside"], found["near"], found["kept"]) == (True, True, "")
    (score, alone) = json.loads(ett("advise", "--score", "--json").output)["scores"]
    assert (score["what"], score["outcomes"], score["inside_percent"]) == ("all", 1, 100)
    assert alone["what"] == "compile-cache"
    ett("advise", *words)  # the same two runs again are the same outcome
    assert len(Kept(runs).outcomes) == 1


def test_a_check_without_a_stored_prediction_is_marked(runs: Path) -> None:
    words = ("--check", "slow", "cached", "--lever", "loader-workers")
    told = ett("advise", *words).output
    assert "predicted now, from slow alone" in told
    assert "outside" in told  # no loader won that


def test_predictions_are_stored_for_ended_jobs_only(runs: Path, tmp_path: Path) -> None:
    live = JobText().start(0, 0).span(0, "pt2_compile", 0, 9).steps(0, 0, 20, 9, 1)
    file = live.write(tmp_path / "live.jsonl")
    ett("import", str(file), "live", "--format", "events")
    ett("advise", "live")
    assert not (runs / "advice.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["slow", "--why", "standbys"], "no lever 'standbys': did you mean standby?"),
        (["--check", "slow", "cached"], "records no lever that slow had not: name them by --lever"),
        (["slow", "--score"], "--score takes no RUN, found 'slow'"),
        (["--lever", "standby"], "--lever goes with --check A B"),
        (["slow", "--why", "pins", "--score"], "expected one of --why and --score, found both"),
        (["none"], "none: no such run"),
    ],
)
def test_bad_input_is_one_line(runs: Path, words: list[str], says: str) -> None:
    done = CliRunner().invoke(main, ["advise", *words])
    assert done.exit_code == 2
    assert says in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_a_report_ends_with_the_three_best(runs: Path, tmp_path: Path) -> None:
    told = ett("report", "slow").output
    assert "what would win most here" in told
    assert "ett run --compile-cache /shared/compiled" in told
    page = tmp_path / "page.html"
    ett("report", "slow", "--html", str(page))
    assert "compile cache" in page.read_text()


def test_every_command_of_the_page_works(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, run in (("my-run", "slow"), ("before", "slow"), ("after", "cached")):
        shutil.copytree(runs / run, runs / name)
    monkeypatch.setenv("ETT_FLEET", str(runs.parent / "fleet"))
    ett("fleet", "rollup", "slow")
    page = (Path(__file__).parents[2] / "docs" / "advice.md").read_text()
    lines = re.findall(r"^ett ((?:advise|fleet).*)$", page, re.MULTILINE)
    assert len(lines) == 5
    for line in lines:
        words = line.partition("#")[0].split()
        ett(*words, *(["--lever", "compile-cache"] if "--check" in words else []))


def test_levers_that_were_on_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETT_RUNS", str(tmp_path))
    script = tmp_path / "train.py"
    script.write_text(
        "import time, torchett as ett\nett.init()\n"
        "for i in range(30):\n    with ett.step(i):\n        time.sleep(0.01)\n"
    )
    words = ["run", "--job", "run", "--light-batches", "--", sys.executable, str(script)]
    subprocess.run([sys.executable, "-m", "torchett.cli.main", *words, "--num-workers", "3"])
    known = known_of(RunReader(tmp_path / "run").poll())
    assert {"light-batches", "pins", "standby"} <= known.on
    assert known.workers == 3
    found = json.loads(ett("advise", "run", "--json").output)
    assert found["nothing_to_win"]["light-batches"] == "light batches were on"


class Noted:
    """A run that has notes and nothing else."""

    levers = frozenset({"standby"})

    def __init__(self, **facts: object) -> None:
        self._facts = facts

    def facts(self, kind: str) -> list[tuple[int, int, object]]:
        return [(0, 0, self._facts[kind])] if kind in self._facts else []


@pytest.mark.parametrize(
    ("facts", "on"),
    [
        ({}, {"standby"}),
        ({"checkpoint_memory": {"buffers": 1}}, {"standby", "async-saves"}),
        ({"checkpoint_memory": {"buffers": 3}}, {"standby", "async-saves", "snapshots"}),
        ({"plan": {"overlapped": False}}, {"standby"}),
        ({"plan": {"overlapped": True}, "compile_cache": {}},
         {"standby", "startup-plan", "compile-cache"}),
    ],
)  # fmt: skip
def test_levers_that_left_a_note_were_on(facts: dict[str, object], on: set[str]) -> None:
    assert _on(Noted(**facts), []) == on  # type: ignore[arg-type]


def outcome(measured: float, run: str) -> CheckedPrediction:
    given = Range(low=8.0, mid=10.0, high=12.0)
    made = KeptPrediction(run=run, levers=("standby",), seconds=given, points=given, made_s=0.0)
    return CheckedPrediction(prediction=made, with_run="b", seconds=measured, points=measured)


def test_calibration_is_the_share_that_the_intervals_held() -> None:
    measured = (9.0, 10.0, 11.0, 11.9, 20.0)
    (score, _) = scores([outcome(m, f"run{i}") for i, m in enumerate(measured)])
    assert (score.inside_percent, score.near_percent) == (80, 80)
    assert score.bias_points == pytest.approx(2.38)
    assert score.below_percent == 0


def test_a_line_that_was_cut_off_is_skipped(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.add([outcome(9.0, "a")])
    with kept.path.open("a") as file:
        file.write('{"event":"outcome","run":"a","wi')
    assert Kept(tmp_path).outcomes == kept.outcomes


@pytest.mark.parametrize(
    ("command", "workers"),
    [
        (["train.py", "--num-workers", "4"], 4),
        (["train.py", "--data.num_workers=8"], 8),
        (["train.py", "--workers", "0"], 0),
        (["torchrun", "--nproc-per-node", "2", "train.py"], None),
    ],
)
def test_loader_workers_are_read_from_the_command(command: list[str], workers: int | None) -> None:
    assert _workers(command) == workers


def test_a_report_does_not_end_with_gains_that_no_second_run_would_show(
    runs: Path, tmp_path: Path
) -> None:
    """1,000 steps that wait 0.8 ms each for data: about 0.4 of 100 points, in a run of 200 s."""
    job = JobText().start(0, 0)
    for i in range(1000):
        begin = round(i * 0.2, 6)
        job.span(0, "data_wait", begin, round(begin + 0.0008, 6))
        job.steps(0, i, 1, round(begin + 0.0008, 6), 0.1992)
    ett("import", str(job.end(0, 200, "success").write(tmp_path / "small.jsonl")), "small")
    assert "light-batches" in ett("advise", "small").stdout.split("nothing to win")[0]
    assert "what would win most here" not in ett("report", "small").stdout
