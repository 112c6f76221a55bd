"""`ett fleet advise` sums the advice on each job."""

import json
from pathlib import Path

import pytest
from advised_jobs import often_killed, slow_to_start
from click.testing import CliRunner

from torchett.advise.advice import Adviser
from torchett.advise.fleet import ATTEMPTS_SQL, JOBS_SQL, facts_of_rows
from torchett.advise.job_facts import job_facts
from torchett.cli.main import main
from torchett.fleet import Fleet
from torchett.runs.reader import RunReader


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runs = tmp_path / "runs"
    runs.mkdir()
    monkeypatch.setenv("ETT_RUNS", str(runs))
    monkeypatch.setenv("ETT_FLEET", str(tmp_path / "fleet"))
    for name, job, team in (("slow", slow_to_start(), "a"), ("killed", often_killed(), "b")):
        file = job.write(tmp_path / f"{name}.jsonl")
        for words in (
            ["import", str(file), name, "--format", "events"],
            ["fleet", "rollup", name, "--label", f"team={team}"],
        ):
            done = CliRunner().invoke(main, words)
            assert done.exit_code == 0, done.output
    return tmp_path / "fleet"


def test_the_facts_from_rows_agree_with_the_ledger(fleet: Path) -> None:
    with Fleet.open(fleet) as opened:
        jobs = opened.query(JOBS_SQL, [7]).to_pylist()
        attempts = opened.query(ATTEMPTS_SQL, [7]).to_pylist()
    for row in jobs:
        reader = RunReader(Path(row["path"])).poll()
        theirs = job_facts(reader.ledger(), reader.history())
        ours = facts_of_rows(row, [a for a in attempts if a["job"] == row["job"]])
        assert ours.lost == pytest.approx(theirs.lost)
        assert (ours.starts, ours.failures) == (theirs.starts, theirs.failures)
        assert ours.cold_compile_s == theirs.cold_compile_s
        assert (ours.saves.saves, ours.saves.failures) == (
            theirs.saves.saves,
            theirs.saves.failures,
        )
        assert ours.saves.blocking_s == theirs.saves.blocking_s
        cache = Adviser(theirs).won(["compile-cache"]).mean()
        assert Adviser(ours).won(["compile-cache"]).mean() == pytest.approx(cache)


def test_hours_are_summed_by_lever_and_by_team(fleet: Path) -> None:
    done = CliRunner().invoke(main, ["fleet", "advise", "--json"])
    found = json.loads(done.output)
    assert found["jobs"] == 2
    assert found["hours"] == pytest.approx(
        sum(RunReader(fleet.parent / "runs" / name).poll().ledger().rank_ns for name in
            ("slow", "killed")) / 3.6e12
    )  # fmt: skip
    gains = {gain["lever"]: gain for gain in found["gains"]}
    assert gains["compile-cache"]["by_team"].keys() == {"a"}
    assert gains["compile-cache"]["hours"]["mid"] == pytest.approx(30 * 0.89 / 3600, rel=0.05)
    assert gains["standby"]["jobs"] == 2
    assert found["together"]["mid"] == pytest.approx(sum(found["by_team"].values()), rel=0.05)
    assert found["together"]["mid"] < found["lost_hours"]


def test_a_week_is_a_week_however_many_days_are_asked_for(fleet: Path) -> None:
    hours = {}
    for days in ("7", "14"):
        words = ["fleet", "advise", "--days", days, "--json"]
        hours[days] = json.loads(CliRunner().invoke(main, words).output)["hours"]
    assert hours["7"] == pytest.approx(2 * hours["14"])


def test_the_table_names_teams_and_says_that_levers_do_not_add(fleet: Path) -> None:
    told = CliRunner().invoke(main, ["fleet", "advise"]).output
    assert "every job's best set" in told
    assert "they do not add" in told
