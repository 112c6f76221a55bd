"""A run is a folder: found by its path or by its name, and nothing else is taken for one."""

from pathlib import Path

import pytest
from player import flight, launched

from torchett.model.errors import RunError
from torchett.record.identity import safe_name
from torchett.runs.folder import find_run, is_run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETT_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def test_a_run_is_found_by_name_and_by_path(runs: Path) -> None:
    flight(runs / "gpt")
    assert find_run("gpt") == runs / "gpt"
    assert find_run(str(runs / "gpt")) == runs / "gpt"
    assert find_run("runs/gpt") == Path("runs/gpt")


def test_a_launchers_log_alone_makes_a_run(runs: Path) -> None:
    launched(runs / "gpt")
    assert is_run(runs / "gpt")


def test_an_unknown_name_says_what_there_is(runs: Path) -> None:
    for name in ("one", "two"):
        flight(runs / name)
    with pytest.raises(RunError, match=r"^three: no such run; .*runs has one, two \(set ETT_RUNS"):
        find_run("three")


def test_an_unknown_name_among_many_says_how_many_more_there_are(runs: Path) -> None:
    for name in "abcdefg":
        flight(runs / name)
    with pytest.raises(RunError, match=r"runs has c, d, e, f, g and 2 more \(set ETT_RUNS"):
        find_run("three")


def test_an_unknown_name_among_no_runs(runs: Path) -> None:
    with pytest.raises(RunError, match="has no runs"):
        find_run("three")


def test_where_there_is_no_folder_of_runs_that_is_said(runs: Path) -> None:
    runs.rmdir()
    with pytest.raises(RunError, match=r"^three: no such run; there is no folder .*runs: start a"):
        find_run("three")


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(runs: Path) -> None:
    flight(runs / "gpt-small")
    with pytest.raises(RunError, match=r"gpt-smal: no such run; did you mean gpt-small\?"):
        find_run("gpt-smal")


def test_a_local_folder_hides_no_run(runs: Path, tmp_path: Path) -> None:
    """A checkout that has a source folder called like the job."""
    (tmp_path / "timm").mkdir()
    flight(runs / "timm")
    assert find_run("timm") == runs / "timm"


def test_a_path_is_a_path_and_a_name_is_a_name(runs: Path, tmp_path: Path) -> None:
    flight(runs / "gpt")
    flight(tmp_path / "gpt")
    assert find_run("gpt") == runs / "gpt"
    assert find_run("./gpt") == Path("gpt")


@pytest.mark.parametrize("name", ["a/b", "../evil", "größe", "🚀", "100%", "a b"])
def test_a_run_is_found_by_the_name_it_was_given(runs: Path, name: str) -> None:
    flight(runs / safe_name(name))
    assert find_run(name) == runs / safe_name(name)
    assert find_run(safe_name(name)) == runs / safe_name(name)


def test_a_folder_of_the_runs_folder_is_found_from_inside(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flight(runs / "gpt")
    monkeypatch.chdir(runs)
    monkeypatch.delenv("ETT_RUNS")
    assert find_run("gpt") == Path("gpt")


def test_a_folder_without_records_is_no_run(runs: Path) -> None:
    (runs / "empty").mkdir()
    with pytest.raises(RunError, match="expected a run folder, found no record in it"):
        find_run("empty")


def test_a_file_is_no_run(runs: Path) -> None:
    (runs / "file").write_text("{}")
    with pytest.raises(RunError, match="expected a run folder, found a file"):
        find_run("file")


@pytest.mark.parametrize("name", ["", ".", "..", "a\0b", "x" * 5000])
def test_a_name_that_no_folder_has_is_refused(runs: Path, name: str) -> None:
    with pytest.raises(RunError):
        find_run(name)
