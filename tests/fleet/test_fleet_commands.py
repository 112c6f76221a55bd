"""`ett fleet` says of jobs what `ett report` says, and of labels what sums to the whole."""

import json
import os
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from torchett.cli.main import main
from torchett.fleet import Fleet
from torchett.fleet.windows import Span, window_of
from torchett.ledger import RULES_VERSION
from torchett.model.errors import InputError

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _histories import Long, Wide  # noqa: E402


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three runs, rolled up for two teams."""
    folder = tmp_path_factory.mktemp("place")
    Wide(ranks=8, attempts=3).write_records(folder / "runs" / "wide")
    Long(steps=9_000, restarts=3).write_records(folder / "runs" / "long")
    Long(steps=50, restarts=0).write_records(folder / "runs" / "short")
    for team, names in {"vision": ["wide"], "nlp": ["long", "short"]}.items():
        runs = [str(folder / "runs" / name) for name in names]
        ett(folder, "rollup", *runs, "--label", f"team={team}", "--label", "stage=pre")
    return folder


def ett(place: Path, *args: str, code: int = 0) -> str:
    """What `ett fleet …` prints."""
    fleet = [] if args[0] == "views" else ["--fleet", str(place / "fleet")]
    done = CliRunner().invoke(main, ["fleet", *args, *fleet], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output if code else done.stdout


def answer(place: Path, *args: str) -> Any:
    return json.loads(ett(place, *args, "--json"))


def report(run: Path) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["report", str(run), "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_show_of_a_job_is_its_report_to_the_microsecond(place: Path) -> None:
    for name in ("wide", "long", "short"):
        said, shown = report(place / "runs" / name), answer(place, "show", name)
        assert shown["time_to_recover_sum_s"] == pytest.approx(
            sum(said.pop("time_to_recover_s")), abs=1e-6
        )
        for key in ("accounts", "groups"):
            assert shown[key] == pytest.approx(said.pop(key), abs=1e-6)
        for key in said.keys() & {"window_s", "rank_seconds", "time_to_start_s", "at_risk_s"}:
            assert shown[key] == pytest.approx(said.pop(key), abs=1e-6)
        same = {key: shown[key] for key in said if key in shown and key != "job"}
        assert same == {key: said[key] for key in same}
        assert set(same) >= {"ett_percent", "ranks", "attempts", "failures", "last_step"}


@pytest.mark.parametrize("by", ["team", "stage", "project", "job"])
def test_labels_sum_to_the_whole_exactly(place: Path, by: str) -> None:
    whole = answer(place, "show")["total"]
    shown = answer(place, "show", "--by", by)
    for key in ("rank_ns", "jobs"):
        assert sum(row[key] for row in shown["rows"]) == whole[key] == shown["total"][key]
    for key in ("groups_ns", "accounts_ns"):
        for name, ns in whole[key].items():
            assert sum(row[key].get(name, 0) for row in shown["rows"]) == ns
    assert {row["label"] for row in shown["rows"]} == {
        "team": {"vision", "nlp"},
        "stage": {"pre"},
        "project": {"default"},
        "job": {"wide", "long", "short"},
    }[by]


def test_a_sum_may_take_more_than_64_bits(tmp_path: Path) -> None:
    from torchett.fleet.figures import shares, whole
    from torchett.fleet.state import PUT_SEGMENT
    from torchett.fleet.storage.segments import EMPTY, with_days

    fleet = Fleet.open(tmp_path / "fleet")
    ns = 2**62
    hour = datetime(2026, 11, 1)
    row = {"project": "p", "hour": hour, "account": "effective", "account_group": "effective"}
    for job in "abc":
        rows = [row | {"job": job, "ns": ns}]
        hours = pyarrow.Table.from_pylist(rows, EMPTY["job_hours"].schema)
        tables = with_days({**EMPTY, "job_hours": hours})
        name = fleet.segments.write(tables, "2026-11-01")
        with fleet.state.change() as db:
            db.execute(PUT_SEGMENT, (name, "2026-11-01", 1, None))
    assert whole(shares(fleet, None, Span())).rank_ns == 3 * ns


def test_sums_by_label_are_the_same_with_and_without_their_file(
    place: Path, tmp_path: Path
) -> None:
    shutil.copytree(place / "fleet", tmp_path / "fleet")
    sums = tmp_path / "fleet" / "rows" / "label-sums.arrow"
    asked = [[], ["--by", "team"], ["--by", "project"], ["--by", "user"], ["--since", "2020-09-14"]]
    with_file = [answer(tmp_path, "show", *args) for args in asked]
    assert sums.exists()
    ett(tmp_path, "rollup", str(place / "runs" / "short"), "--project", "two", "--label", "team=x")
    more = [answer(tmp_path, "show", *args) for args in asked]
    sums.unlink()
    assert [answer(tmp_path, "show", *args) for args in asked] == more != with_file
    sums.write_bytes(b"no Arrow")
    assert [answer(tmp_path, "show", *args) for args in asked] == more


def test_a_fleet_of_another_version_is_refused_in_one_line(tmp_path: Path) -> None:
    import sqlite3

    Fleet.open(tmp_path / "fleet").close()
    db = sqlite3.connect(tmp_path / "fleet" / "fleet.db")
    db.execute("PRAGMA user_version = 2")
    db.commit()
    done = CliRunner().invoke(main, ["fleet", "ls", "--fleet", str(tmp_path / "fleet")])
    assert done.exit_code == 2
    assert "roll its runs up into another folder" in done.stderr


def test_windows_divide_the_time_without_a_gap(place: Path) -> None:
    whole = answer(place, "show")["total"]["rank_ns"]
    cut = "2020-09-13T14:00"
    before = answer(place, "show", "--until", cut)["total"]["rank_ns"]
    after = answer(place, "show", "--since", cut)["total"]["rank_ns"]
    assert before + after == whole
    assert min(before, after) > 0
    assert answer(place, "show", "--window", "day")["total"]["rank_ns"] == 0
    assert answer(place, "show", "--where", "team=nlp")["total"]["jobs"] == 2
    assert answer(place, "show", "--where", "stage=none")["total"]["jobs"] == 0


def test_a_rolling_window_begins_with_a_whole_hour() -> None:
    now = datetime(2026, 11, 19, 4, 30)
    assert window_of("day", None, None, now) == Span(begin=datetime(2026, 11, 18, 4))
    assert window_of("week", None, None, now).begin == datetime(2026, 11, 12, 4)
    assert window_of(None, None, None, now) == Span()
    since = window_of(None, "2026-11-01T02:00+02:00", None, now)
    assert since.begin == datetime(2026, 11, 1)
    assert not since.by_day or since.end is None
    for bad in ({"since": "yesterday"}, {"since": "2026-01-02", "until": "2026-01-01"}):
        with pytest.raises(InputError, match="expected a"):
            window_of(None, bad.get("since"), bad.get("until"), now)


def test_ls_and_worst(place: Path) -> None:
    rows = answer(place, "ls")
    assert [row["job"] for row in rows] == ["long", "short", "wide"]
    assert [row["job"] for row in answer(place, "ls", "--where", "team=vision")] == ["wide"]
    assert len(answer(place, "ls", "-n", "1")) == 1
    assert answer(place, "worst") == []  # of the last month
    everything = ("worst", "--window", "all")
    assert [row["job"] for row in answer(place, *everything)] == ["wide", "long", "short"]
    assert answer(place, *everything, "--order", "ett")[0]["job"] == "short"
    assert answer(place, *everything)[0]["largest_loss"] == "recover"
    assert "wide" in ett(place, "ls")
    assert "wide" in ett(place, *everything)
    assert "ETT% 68" in ett(place, "show")
    shares = ett(place, "show", "--by", "team")
    assert "held_idle" not in shares  # of sacct's jobs: there are none
    assert "unattributed" in shares


@pytest.mark.parametrize("form", ["parquet", "csv", "arrow"])
def test_export_holds_what_the_query_finds(place: Path, tmp_path: Path, form: str) -> None:
    read = {
        "parquet": pyarrow.parquet.read_table,
        "csv": pyarrow.csv.read_csv,
        "arrow": pyarrow.feather.read_table,
    }[form]
    file = tmp_path / f"out.{form}"
    said = answer(place, "export", "job_hours", "-o", str(file))
    assert said == {"output": str(file), "format": form, "rows": read(file).num_rows}
    assert sum(read(file)["ns"].to_pylist()) == answer(place, "show")["total"]["rank_ns"]
    ett(place, "export", "--sql", "SELECT job FROM jobs ORDER BY job", "-o", str(file))
    assert read(file)["job"].to_pylist() == ["long", "short", "wide"]


def test_what_cannot_be_exported_leaves_no_file(place: Path, tmp_path: Path) -> None:
    for args in (
        ["jobs", "-o", str(tmp_path / "x.xlsx")],
        ["nothing", "-o", str(tmp_path / "x.csv")],
        ["--sql", "SELECT * FROM nothing", "-o", str(tmp_path / "x.csv")],
        ["--sql", "SELECT * FROM read_text('/etc/passwd')", "-o", str(tmp_path / "x.csv")],
        ["jobs", "--sql", "SELECT 1", "-o", str(tmp_path / "x.csv")],
        ["jobs", "-o", str(tmp_path / "no" / "x.csv")],
    ):
        ett(place, "export", *args, code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "ATTACH '/tmp/x.db'",
        "COPY jobs TO '/tmp/x.csv'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "EXPORT DATABASE '/tmp/x'",
        "PRAGMA database_list",
        "CALL pragma_version()",
        "SELECT getenv('HOME') AS h",
        "SET enable_external_access = true",
        "EXPLAIN ANALYZE COPY jobs TO '/tmp/x.csv'",
        "WITH x AS (SELECT 1) INSERT INTO jobs SELECT * FROM jobs",
    ],
)
def test_a_query_reaches_no_file(place: Path, sql: str) -> None:
    assert ett(place, "query", sql, code=2).startswith("ett: query: ")


def test_rows_of_older_rules_are_made_anew(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "fleet", tmp_path / "fleet")
    run = str(place / "runs" / "short")
    labels = ("--label", "team=nlp", "--label", "stage=pre")
    assert answer(tmp_path, "rollup", run, *labels)["unchanged"] == 1
    with Fleet.open(tmp_path / "fleet") as fleet, fleet.state.change() as db:
        db.execute("UPDATE jobs SET kernel = ? WHERE job = 'short'", [RULES_VERSION - 1])
    assert answer(tmp_path, "rollup", run, *labels)["jobs"] == 1
    before = answer(tmp_path, "show", "--by", "team")
    assert answer(tmp_path, "rollup", "--all")["jobs"] == 3
    assert answer(tmp_path, "show", "--by", "team") == before


def test_one_broken_run_is_said_and_the_others_count(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "runs", tmp_path / "runs")
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "attempts-0.jsonl").write_bytes(b"\xff no JSON")
    done = answer(tmp_path, "rollup", str(tmp_path / "runs"), "--workers", "2")
    assert done["jobs"] == 3
    assert len(done["errors"]) == 1
    assert "broken" in done["errors"][0]


def test_retention_removes_only_what_is_the_fleets(place: Path, tmp_path: Path) -> None:
    Long(steps=50, restarts=0).write_records(tmp_path / "mine")
    events = tmp_path / "gpt.jsonl"
    done = CliRunner().invoke(main, ["export", str(tmp_path / "mine"), "-o", str(events)])
    assert done.exit_code == 0
    ett(tmp_path, "rollup", str(tmp_path / "mine"))
    ett(tmp_path, "import", "--format", "events", str(events))
    would = answer(tmp_path, "retention", "--runs", "30", "--dry-run")
    assert (would["runs"], would["dry_run"]) == (1, True)
    assert (tmp_path / "fleet" / "runs" / "default" / "gpt").is_dir()
    assert answer(tmp_path, "retention", "--runs", "30")["runs"] == 1
    assert not (tmp_path / "fleet" / "runs" / "default" / "gpt").exists()
    assert (tmp_path / "mine").is_dir()
    assert {row["job"] for row in answer(tmp_path, "ls")} == {"gpt", "mine"}
    assert answer(tmp_path, "retention", "--rows", "30")["jobs"] == 2
    assert answer(tmp_path, "ls") == []


def test_a_job_of_two_projects_has_to_be_named_with_one(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "fleet", tmp_path / "fleet")
    ett(tmp_path, "rollup", str(place / "runs" / "short"), "--project", "other")
    assert "add --project" in ett(tmp_path, "show", "short", code=2)
    assert answer(tmp_path, "show", "short", "--project", "other")["project"] == "other"
    assert "no such job" in ett(tmp_path, "show", "none", code=2)


def test_wrong_use_is_one_line(place: Path) -> None:
    for args in (
        ["rollup"],
        ["show", "wide", "--window", "day"],
        ["show", "--by", 'a"b'],
        ["show", "--since", "never"],
        ["rollup", str(place / "nothing")],
    ):
        assert ett(place, *args, code=2).count("\n") == 1, args
    os.environ.pop("ETT_FLEET", None)
    done = CliRunner().invoke(main, ["fleet", "ls", "--fleet", str(place / "none")])
    assert done.exit_code == 2
