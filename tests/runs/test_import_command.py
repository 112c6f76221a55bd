"""`ett import --format …` as a user types it: a run, or one line and nothing left behind."""

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from torchett.cli.main import main

GOODPUT = [{"job_start_time": 0}, {"step_count": 0, "step_start_time": 2}, {"job_end_time": 9}]
FILES = {
    "goodput": "".join(json.dumps({"job_name": "a"} | entry) + "\n" for entry in GOODPUT),
    "csv": "t,step\n0,1\n1,2\n2,3\n",
    "log": "".join(f"2026-01-01 00:00:{i:02d} step {i} loss 2.0\n" for i in range(9)),
    "torchtitan": "".join(
        json.dumps({"rank": 0, "time_us": t, "log_type": "event", "log_type_name": n, "step": 1})
        + "\n"
        for n, t in (("step_start", 10**6), ("step_end", 3 * 10**6))
    ),
}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETT_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def ett(*args: str) -> Result:
    return CliRunner().invoke(main, args)


@pytest.mark.parametrize("form", FILES)
def test_each_format_becomes_a_run_whose_sum_holds(form: str, runs: Path, tmp_path: Path) -> None:
    file = tmp_path / f"{form}.txt"
    file.write_text(FILES[form])
    said = ett("import", str(file), "old", "--format", form)
    assert said.exit_code == 0, said.output
    found = json.loads(ett("report", "old", "--json").stdout)
    assert sum(found["accounts"].values()) == pytest.approx(found["rank_seconds"], abs=1e-6)
    assert found["last_step"] is not None
    assert found["notes"]  # what the file does not tell is said, and kept


@pytest.mark.parametrize("form", FILES)
def test_what_is_not_of_the_format_is_one_line_and_no_run(
    form: str, runs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "bad.txt"
    file.write_text("what is this?\n")
    said = ett("import", str(file), "old", "--format", form)
    assert said.exit_code == 2
    assert said.stderr.startswith(f"ett: {file}:1: expected")
    assert said.stderr.count("\n") == 1
    assert not runs.exists() or not list(runs.iterdir())


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("csv", "t,step\n0,1\n1,5000000001\n"),
        ("log", "2026-01-01 00:00:00 step 1\n2026-01-01 00:00:01 step 5000000001\n"),
        ("goodput", FILES["goodput"].replace('"job_end', '"step_count": 5000000001, "step_start')),
    ],
)
def test_steps_that_no_job_has_made_in_one_go_are_one_line(
    form: str, text: str, runs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "jump.txt"
    file.write_text(text)
    said = ett("import", str(file), "old", "--format", form)
    assert said.exit_code == 2
    assert said.stderr.startswith(f"ett: {file}: expected steps that follow each other, found step")


def test_a_log_may_be_packed(runs: Path, tmp_path: Path) -> None:
    packed = gzip.compress(FILES["log"].encode())
    (tmp_path / "a.log.gz").write_bytes(packed)
    assert ett("import", str(tmp_path / "a.log.gz"), "a", "--format", "log").exit_code == 0
    (tmp_path / "b.log.gz").write_bytes(packed[:-9])
    said = ett("import", str(tmp_path / "b.log.gz"), "b", "--format", "log")
    assert (said.exit_code, "expected a whole gzip file" in said.stderr) == (2, True)


def test_a_folder_of_torchtitan_is_one_job(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "structured_logs"
    folder.mkdir()
    assert ett("import", str(folder), "t", "--format", "torchtitan").exit_code == 2
    for rank in (0, 1):
        text = FILES["torchtitan"].replace('"rank": 0', f'"rank": {rank}')
        (folder / f"training.global_rank_{rank}.jsonl").write_text(text)
    assert ett("import", str(folder), "t", "--format", "torchtitan").exit_code == 0
    assert json.loads(ett("report", "t", "--json").stdout)["ranks"] == 2


def test_times_that_the_user_adds(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("t,step\n2026-01-01 00:01:00,1\n2026-01-01 00:02:00,2\n")
    hints = (
        "--format",
        "csv",
        "--began",
        "2026-01-01T00:00:00Z",
        "--ended",
        "2026-01-01T00:04:00Z",
    )
    assert ett("import", str(file), "a", *hints).exit_code == 0
    found = json.loads(ett("report", "a", "--json").stdout)
    assert found["accounts"] == {"effective": 60, "unattributed": 60, "teardown": 120}
    said = ett("import", str(file), "b", "--format", "csv", "--began", "noon")
    assert (said.exit_code, said.stderr[:16]) == (2, "ett: --began: ex")


EVENTS = (
    {"event": "job", "format": "events/1", "job": "a", "ranks": 1},
    {"event": "attempt_start", "attempt": 0, "t": 0.0},
    {"event": "step", "attempt": 0, "rank": 0, "step": 4, "t0": 2.0, "t1": 8.0},
    {"event": "attempt_end", "attempt": 0, "t": 8.0, "outcome": "success"},
)


@pytest.mark.parametrize("epoch", [1.7e12, -1.7e12, 4e9, 1e300])
def test_events_of_a_clock_that_tells_no_date_are_reported(
    epoch: float, runs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "far.jsonl"
    file.write_text(
        "".join(
            json.dumps({k: epoch + v if isinstance(v, float) else v for k, v in event.items()})
            + "\n"
            for event in EVENTS
        )
    )
    assert ett("import", str(file), "far").exit_code == 0
    found = json.loads(ett("report", "far", "--json").stdout)
    lasted = (epoch + 8) - epoch  # 0 where floats lie further apart than that
    assert (found["window_s"], found["last_step"]) == (lasted, 4)
    assert "notes" not in found


def test_a_run_keeps_as_many_accounts_of_a_user_as_events_may_name(
    runs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "many.jsonl"
    spans = (
        {"event": "span", "attempt": 0, "rank": 0, "account": f"x-kind_{i}", "t0": i, "t1": i + 1}
        for i in range(9_000)
    )
    file.write_text("".join(json.dumps(event) + "\n" for event in (*EVENTS[:2], *spans)))
    assert ett("import", str(file), "many").exit_code == 0
    found = json.loads(ett("report", "many", "--json").stdout)
    assert found["accounts"] == {f"x-kind_{i}": 1.0 for i in range(9_000)}


def test_a_name_that_no_folder_can_have_is_one_line(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    runs.mkdir()
    said = ett("import", str(file), "a" * 300)
    assert (said.exit_code, said.stderr.count("\n")) == (2, 1)
    assert "File name too long" in said.stderr


def test_an_imported_job_without_a_step_says_nothing_of_a_full_disk(
    runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "worker.jsonl").write_text(
        '{"event":"job","format":"events/1","job":"worker","ranks":1}\n'
        '{"event":"attempt_start","attempt":0,"t":0}\n'
        '{"event":"attempt_end","attempt":0,"t":3,"outcome":"success"}\n'
    )
    assert ett("import", str(tmp_path / "worker.jsonl"), "worker").exit_code == 0
    said = ett("report", "worker").stdout
    assert "Time to Start never" in said
    assert "disk" not in said
