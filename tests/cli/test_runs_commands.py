"""`ett ls`, `rm`, `explain`, `compare --fail-if` and `ett.load`, as a user meets them."""

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from torchett.cli.main import main

TOY = """\
{"event":"job","format":"events/1","job":"toy","ranks":2}
{"event":"attempt_start","attempt":0,"t":0.0}
{"event":"span","attempt":0,"rank":0,"account":"imports","t0":0.5,"t1":3}
{"event":"step","attempt":0,"rank":0,"step":0,"t0":4,"t1":8}
{"event":"step","attempt":0,"rank":0,"step":1,"t0":8,"t1":12}
{"event":"step","attempt":0,"rank":1,"step":0,"t0":4,"t1":8}
{"event":"attempt_end","attempt":0,"t":14,"outcome":"failed","cause":"nccl_timeout"}
{"event":"attempt_start","attempt":1,"t":16}
{"event":"step","attempt":1,"rank":0,"step":1,"t0":20,"t1":24}
{"event":"step","attempt":1,"rank":1,"step":1,"t0":21,"t1":24}
{"event":"attempt_end","attempt":1,"t":26,"outcome":"success"}
"""


@pytest.fixture
def ett(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that calls `ett …` with its runs in tmp_path/runs: toy, and other without loss."""
    monkeypatch.setenv("ETT_RUNS", str(tmp_path / "runs"))

    def call(*args: str) -> Result:
        return CliRunner().invoke(main, args)

    whole = [line for line in TOY.splitlines() if '"attempt":1' not in line]
    whole = [line.replace('"failed","cause":"nccl_timeout"', '"success"') for line in whole]
    for name, text in (("toy", TOY), ("other", "\n".join(whole))):
        (tmp_path / f"{name}.jsonl").write_text(text)
        assert call("import", str(tmp_path / f"{name}.jsonl"), name).exit_code == 0
    return call


def test_ls_shows_every_run_newest_first(ett: Any, tmp_path: Path) -> None:
    os.utime(tmp_path / "runs" / "toy")
    for path in (tmp_path / "runs" / "toy").iterdir():
        os.utime(path, (2e9, 2e9))
    found = json.loads(ett("ls", "--json").stdout)
    assert [run["name"] for run in found["runs"]] == ["toy", "other"]
    toy = found["runs"][0]
    assert (toy["ranks"], toy["attempts"], toy["failures"], toy["last_step"]) == (2, 2, 1, 1)
    assert toy["bytes"] > 0
    shown = ett("ls").stdout.splitlines()
    assert shown[1].split()[0] == "toy"
    assert ett("ls", "-n", "1").stderr.strip().endswith("ett ls -n 0 shows all")


def test_ls_says_where_it_looked(ett: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETT_RUNS", str(tmp_path / "nowhere"))
    done = ett("ls")
    assert done.exit_code == 2
    assert "nowhere: no such folder" in done.stderr


def test_a_run_that_cannot_be_read_does_not_hide_the_others(ett: Any, tmp_path: Path) -> None:
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "attempts-0.jsonl").write_text("{")
    found = json.loads(ett("ls", "--json").stdout)["runs"]
    assert {run["name"] for run in found} == {"toy", "other", "bad"}
    assert next(run for run in found if run["name"] == "bad")["error"]


def test_rm_deletes_what_it_names_and_nothing_else(ett: Any, tmp_path: Path) -> None:
    assert ett("rm", "toy", "nosuch", "-y").exit_code == 2
    assert (tmp_path / "runs" / "toy").exists()
    assert ett("rm", "toy", "-y").exit_code == 0
    assert not (tmp_path / "runs" / "toy").exists()
    assert (tmp_path / "runs" / "other").exists()


def test_rm_asks_first(ett: Any, tmp_path: Path) -> None:
    assert ett("rm", "toy").exit_code == 1  # no answer on stdin
    assert (tmp_path / "runs" / "toy").exists()


def test_a_report_as_csv_sums_to_the_rank_seconds_of_its_json(ett: Any) -> None:
    done = ett("report", "toy", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    found = json.loads(ett("report", "toy", "--format", "json").stdout)
    assert {row["job"] for row in rows} == {"toy"}
    total = sum(float(row["rank_seconds"]) for row in rows)
    assert total == pytest.approx(found["rank_seconds"])
    effective = [float(row["rank_seconds"]) for row in rows if row["account"] == "effective"]
    assert sum(effective) == pytest.approx(found["accounts"]["effective"])


def test_every_account_and_figure_is_explained(ett: Any) -> None:
    listed = json.loads(ett("explain", "--json").stdout)
    words = {term["word"] for term in listed}
    from torchett.model.accounts import GROUPS, NAMES

    assert {*GROUPS, *NAMES, "standby", "lasted"} <= words
    assert "torchrun starts" in ett("explain", "launcher_init").stdout
    assert "(figure)" in ett("explain", "time", "to", "recover").stdout
    assert "loop" in ett("explain", "in the loop").stdout


def test_every_lever_and_column_of_a_report_is_explained(ett: Any) -> None:
    from torchett.launch.settings.switches import SWITCHES
    from torchett.record.patch_table import TABLE

    levers = {*(patch.lever for patch in TABLE), *(each.lever for each in SWITCHES if each.does)}
    for lever in levers - {"imports"}:  # an account is called so, too
        assert "Switch: " in ett("explain", lever).stdout, lever
    shown = ett("report", "toy").stdout
    for column in ("lasted", "steps", "ended", "lost to failures", "start again", "unsaved"):
        assert column in shown
        assert ett("explain", column).exit_code == 0, column


def test_a_misspelt_word_is_suggested(ett: Any) -> None:
    done = ett("explain", "data_wiat")
    assert done.exit_code == 2
    assert "did you mean data_wait" in done.stderr


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ("recover>10s", 1),
        ("recover>30s", 0),
        ("ett<50%", 1),
        ("ett<-2", 1),
        ("ett<1%", 0),
        ("failures>0", 1),
        ("failures>+1", 0),
        ("wall>1.5x", 1),
        ("unattributed>+1h", 0),
        ("imports>3%", 1),
    ],
)
def test_a_limit_that_holds_ends_with_1(ett: Any, limit: str, code: int) -> None:
    done = ett("compare", "other", "toy", "--fail-if", limit)
    assert done.exit_code == code, done.stderr
    assert ("--fail-if" in done.stderr) == bool(code)


def test_a_limit_that_holds_is_said_with_the_value(ett: Any) -> None:
    limits = ("recover>10s", "ett<50%", "ett<-2", "wall>1.5x", "imports>3%", "failures>0")
    words = [word for limit in limits for word in ("--fail-if", limit)]
    said = ett("compare", "other", "toy", *words).stderr.splitlines()
    assert said == [
        "ett: --fail-if recover>10s holds: recover is 12s",
        "ett: --fail-if ett<50% holds: ett is 28.85%",
        "ett: --fail-if ett<-2 holds: ett changed by -14.01 points",
        "ett: --fail-if wall>1.5x holds: wall is 1.857 times that of A",
        "ett: --fail-if imports>3% holds: imports is 4.808%",
        "ett: --fail-if failures>0 holds: failures is 1",
    ]


@pytest.mark.parametrize("limit", ["recover", "recover>", "nosuch>1s", "ett>5s", "tts>5%"])
def test_a_limit_that_is_none_is_refused(ett: Any, limit: str) -> None:
    done = ett("compare", "other", "toy", "--fail-if", limit)
    assert done.exit_code == 2
    assert "--fail-if" in done.stderr


def test_a_loaded_run_sums_to_its_ledger(ett: Any, tmp_path: Path) -> None:
    import pyarrow.compute as pc

    import torchett

    run = torchett.load(tmp_path / "runs" / "toy")
    assert pc.sum(run.accounts["seconds"]).as_py() == pytest.approx(run.ledger.rank_ns / 1e9)
    lasted = pc.subtract(run.timeline()["t1_ns"], run.timeline()["t0_ns"])
    assert pc.sum(lasted).as_py() == run.ledger.rank_ns
    assert run.attempts["state"].to_pylist() == ["failed", "success"]
    assert run.losses["cause"].to_pylist() == ["nccl_timeout"]
    assert run.steps()["step"].to_pylist() == [0, 1, 0, 1, 1]
    assert run.spans()["account"].to_pylist() == ["imports"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["report", "--format", "xml"], "ett report: invalid value for '--format': 'xml' is not"),
        (["rm"], "ett rm: missing argument 'RUN…': see ett rm --help"),
        (["nosuch"], "ett: no such command 'nosuch'"),
        (["--bogus"], "ett: no such option '--bogus'"),
        (["report", "--htlm", "x"], "ett report: no such option '--htlm'"),
        (["checkpoint", "plan", "x"], "ett checkpoint plan: got unexpected extra argument (x)"),
    ],
)
def test_a_usage_error_is_one_line(ett: Any, args: list[str], said: str) -> None:
    done = ett(*args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


def test_a_group_without_a_command_shows_its_help(ett: Any) -> None:
    done = ett("fleet")
    assert done.exit_code == 2
    assert "Commands:" in done.stderr
