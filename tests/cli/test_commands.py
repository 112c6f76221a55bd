"""The commands as a user types them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOY = """\
{"event":"job","format":"events/1","job":"toy","ranks":2}
{"event":"attempt_start","attempt":0,"t":0.0,"submitted":-30,"allocated":-5}
{"event":"span","attempt":0,"rank":0,"account":"imports","t0":0.5,"t1":3}
{"event":"step","attempt":0,"rank":0,"step":0,"t0":4,"t1":8}
{"event":"step","attempt":0,"rank":0,"step":1,"t0":8,"t1":12}
{"event":"step","attempt":0,"rank":1,"step":0,"t0":4,"t1":8}
{"event":"checkpoint","attempt":0,"step":0,"durable":10}
{"event":"attempt_end","attempt":0,"t":14,"outcome":"failed","cause":"nccl_timeout"}
{"event":"attempt_start","attempt":1,"t":16}
{"event":"step","attempt":1,"rank":0,"step":1,"t0":20,"t1":24}
{"event":"step","attempt":1,"rank":1,"step":1,"t0":21,"t1":24}
{"event":"attempt_end","attempt":1,"t":26,"outcome":"success"}
"""


@pytest.fixture
def ett(tmp_path: Path) -> Any:
    """A function that runs `ett …` with its runs in tmp_path."""

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "torchett.cli.main", *args],
            env=os.environ | {"ETT_RUNS": str(tmp_path / "runs")},
            capture_output=True,
            text=True,
            timeout=60,
        )

    (tmp_path / "toy.jsonl").write_text(TOY)
    assert call("import", str(tmp_path / "toy.jsonl"), "toy").returncode == 0
    return call


def test_the_json_report_has_every_key_and_sums(ett: Any) -> None:
    found = json.loads(ett("report", "toy", "--json").stdout)
    assert set(found) == {
        "job", "ett_percent", "window_s", "queue_s", "ranks", "attempts", "failures",
        "time_to_start_s", "time_to_recover_s", "at_risk_s", "estimated_s", "requeue_s",
        "last_step", "rank_seconds", "accounts", "groups", "recovery_stages",
    }  # fmt: skip
    assert found["rank_seconds"] == 62
    assert sum(found["accounts"].values()) == pytest.approx(62, abs=1e-6)
    assert sum(found["groups"].values()) == pytest.approx(62, abs=1e-6)
    assert found["accounts"]["effective"] == 15
    assert found["time_to_recover_s"] == [8]


def test_the_report_reads_as_a_page(ett: Any) -> None:
    page = ett("report", "toy").stdout
    for words in ("toy  24.2% effective", "Time to Start 9.0 s", "Time to Recover 8.0 s",
                  "Number of Failures 1", "restart_gap", "attempt 0 nccl_timeout (infra)",
                  "steps 1", "sum"):  # fmt: skip
        assert words in page, words


def test_a_terminal_that_knows_no_bars_has_the_figures(
    ett: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    for command in (["report", "toy"], ["compare", "toy", "toy"]):
        page = ett(*command)
        assert (page.returncode, page.stderr) == (0, "")
        assert "24.2%" in page.stdout


@pytest.mark.parametrize("definition", ["meta", "goodput", "megascale", "ettr"])
def test_each_definition_gives_its_own_number(ett: Any, definition: str) -> None:
    # goodput: rank 0's gap 4→8 over 26 s; megascale: rank 0's steps 0 and 1, 4 s each, over 31 s;
    # ettr: 15 of 62 rank-seconds and 2 × 25 s in the queue.
    truth = {"meta": 1500 / 62, "goodput": 400 / 26, "megascale": 800 / 31, "ettr": 1500 / 112}
    found = json.loads(ett("report", "toy", "--json", "--definition", definition).stdout)
    value = found["ett_percent"] if definition == "meta" else found["definition"]["percent"]
    assert value == pytest.approx(truth[definition])


def test_a_comparison_names_what_moved_most(ett: Any, tmp_path: Path) -> None:
    faster = TOY.replace('"t0":20,', '"t0":16,').replace('"t0":21,', '"t0":16,')
    (tmp_path / "faster.jsonl").write_text(faster.replace('"toy"', '"faster"'))
    ett("import", str(tmp_path / "faster.jsonl"), "faster")
    found = json.loads(ett("compare", "toy", "faster", "--json").stdout)
    assert [m["account"] for m in found["accounts"][:2]] == ["effective", "unattributed"]
    assert found["ett_points"] == pytest.approx(100 * (24 - 15) / 62)
    assert "+14.5 points" in ett("compare", "toy", "faster").stdout


def test_runs_of_one_name_are_compared_by_their_folders(ett: Any, tmp_path: Path) -> None:
    ett("import", str(tmp_path / "toy.jsonl"), "again")
    page = ett("compare", "toy", "again").stdout
    assert page.startswith("toy → again ")
    assert "again s" in page
    elsewhere = tmp_path / "elsewhere" / "toy"
    shutil.copytree(tmp_path / "runs" / "toy", elsewhere)
    assert f"→{elsewhere}" in "".join(ett("compare", "toy", str(elsewhere)).stdout.split())


def test_what_is_exported_imports_to_the_same_ledger(ett: Any, tmp_path: Path) -> None:
    out = tmp_path / "again.jsonl"
    assert ett("export", "toy", "-o", str(out)).returncode == 0
    assert ett("import", str(out), "again").returncode == 0
    a, b = (json.loads(ett("report", name, "--json").stdout) for name in ("toy", "again"))
    assert a == b


def test_the_report_can_be_a_picture(ett: Any, tmp_path: Path) -> None:
    assert ett("report", "toy", "--svg", str(tmp_path / "toy.svg")).returncode == 0
    assert (tmp_path / "toy.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["report", "nothing"], "nothing: no such run"),
        (["report", "{tmp}"], "found no record in it"),
        (["report", "{tmp}/toy.jsonl"], "expected a run folder, found a file"),
        (["compare", "toy", "nothing"], "nothing: no such run"),
        (["import", "{tmp}/nothing.jsonl", "new"], "expected a readable file"),
        (["import", "{tmp}/bad.jsonl", "new"], "bad.jsonl:2: expected"),
        (["import", "{tmp}/toy.jsonl", "toy"], "expected a new run"),
        (["export", "toy", "-o", "{tmp}/no/such/folder"], "not writable"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    ett: Any, tmp_path: Path, args: list[str], said: str
) -> None:
    (tmp_path / "bad.jsonl").write_text(TOY.splitlines()[0] + '\n{"event":"step","attempt":0}\n')
    before = sorted(tmp_path.rglob("*"))
    done = ett(*(arg.format(tmp=tmp_path) for arg in args))
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "args",
    [
        ["run", "--hang-timeout", "-1", "--", "true"],
        ["run", "--progress", "-1", "--", "true"],
        ["compile", "cache", "gc", "{tmp}", "--older-than", "-5"],
    ],
)
def test_a_time_below_zero_is_refused(ett: Any, tmp_path: Path, args: list[str]) -> None:
    done = ett(*(arg.format(tmp=tmp_path) for arg in args))
    assert done.returncode == 2
    assert "is not in the range x>=0" in done.stderr


def test_the_help_says_which_formats_can_be_followed(ett: Any) -> None:
    said = " ".join(ett("export", "--help").stdout.split())
    assert "(tensorboard, wandb, mlflow)" in said


@pytest.mark.parametrize(
    "command", ["report toy", "report toy --json", "export toy", "export toy --format perfetto"]
)
def test_a_full_disk_behind_stdout_is_one_line(ett: Any, tmp_path: Path, command: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "torchett.cli.main", *command.split()],
            env=os.environ | {"ETT_RUNS": str(tmp_path / "runs")},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr == "ett: output not written: No space left on device\n"


def test_a_reader_that_leaves_early_is_no_error(ett: Any, tmp_path: Path) -> None:
    command = f"{sys.executable} -m torchett.cli.main export toy | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        env=os.environ | {"ETT_RUNS": str(tmp_path / "runs")},
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_the_command_imports_ends_it_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)\n")
    script = Path(sys.executable).parent / "ett"
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([script, "--help"], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize("asked", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}])
def test_where_nothing_but_ascii_can_be_shown_bars_are_ascii(
    asked: dict[str, str], ett: Any, tmp_path: Path
) -> None:
    env = os.environ | {"ETT_RUNS": str(tmp_path / "runs")} | asked
    report = [sys.executable, "-m", "torchett.cli.main", "report", "toy"]
    page = subprocess.run(report, env=env, capture_output=True, timeout=60).stdout.decode("ascii")
    legend = next(line for line in page.splitlines() if "effective   " in line)
    assert legend.split("   ")[:4] == ["# effective", "+ start", "x recover", ". in the loop"]
    assert re.search(r"^effective +[\d.]+ +[\d.]+%  #+", page, re.MULTILINE)
    assert page.count("?") == sum(line.count("?") for line in ett("report", "toy").stdout)


@pytest.mark.parametrize("command", ["report toy", "report toy --json", "compare toy toy"])
def test_a_closed_stdout_is_no_traceback(command: str, ett: Any, tmp_path: Path) -> None:
    words = f"{sys.executable} -m torchett.cli.main {command} >&-"
    env = os.environ | {"ETT_RUNS": str(tmp_path / "runs")}
    done = subprocess.run(["bash", "-c", words], env=env, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, b"")
