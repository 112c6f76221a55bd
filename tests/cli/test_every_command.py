"""What holds for every command: `--json`, and a help text for each option."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from torchett.cli.main import main

# They run until they are stopped, or what they print is a format of its own.
WITHOUT = {
    "ett publish serve",
    "ett schedule beacon",
    "ett serve",
    "ett fleet watch",
    "ett fleet alerts watch",
    "ett fleet rules",
    "ett fleet dashboard",
}

ONE_STEP = """\
{"event":"job","format":"events/1","job":"toy","ranks":1}
{"event":"attempt_start","attempt":0,"t":0.0}
{"event":"step","attempt":0,"rank":0,"step":0,"t0":4,"t1":8}
{"event":"attempt_end","attempt":0,"t":10,"outcome":"success"}
"""


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    for name, one in group.commands.items():
        if isinstance(one, click.Group):
            yield from commands(one, f"{path} {name}")
        else:
            yield f"{path} {name}", one


def test_every_command_with_a_result_has_json() -> None:
    missing = {
        path
        for path, one in commands(main, "ett")
        if not any("--json" in option.opts for option in one.params)
    }
    assert missing == WITHOUT


def test_every_option_has_a_help_text() -> None:
    silent = [
        (path, option.opts)
        for path, one in commands(main, "ett")
        for option in one.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []


@pytest.fixture
def ett(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that calls `ett … --json` and returns the one object on stdout."""
    monkeypatch.setenv("ETT_RUNS", str(tmp_path / "runs"))
    (tmp_path / "toy.jsonl").write_text(ONE_STEP)

    def call(*args: str, stdin: str | None = None) -> Any:
        done = CliRunner().invoke(main, [*args, "--json"], input=stdin)
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    return call


def test_an_import_names_the_run_it_made(ett: Any, tmp_path: Path) -> None:
    made = ett("import", str(tmp_path / "toy.jsonl"), "toy")
    assert made == {"run": "toy", "path": str(tmp_path / "runs" / "toy"), "notes": []}
    assert Path(made["path"]).is_dir()


def test_an_export_names_the_file_it_wrote(ett: Any, tmp_path: Path) -> None:
    ett("import", str(tmp_path / "toy.jsonl"), "toy")
    out = tmp_path / "out.json"
    done = ett("export", "toy", "--format", "perfetto", "-o", str(out))
    assert done == {"run": "toy", "format": "perfetto", "output": str(out)}
    assert out.stat().st_size


def test_an_export_to_stdout_has_no_room_for_json(ett: Any, tmp_path: Path) -> None:
    ett("import", str(tmp_path / "toy.jsonl"), "toy")
    done = CliRunner().invoke(main, ["export", "toy", "--json"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "-o FILE" in done.stderr


def test_deleted_runs_are_listed_and_the_question_is_not_on_stdout(
    ett: Any, tmp_path: Path
) -> None:
    ett("import", str(tmp_path / "toy.jsonl"), "a")
    ett("import", str(tmp_path / "toy.jsonl"), "b")
    gone = ett("rm", "a", "b", "a", stdin="y\n")
    assert gone == {"deleted": [str(tmp_path / "runs" / name) for name in ("a", "b")]}
    assert not any((tmp_path / "runs").iterdir())


def test_a_worker_counts_what_it_did(ett: Any, tmp_path: Path) -> None:
    found = ett("publish", "work", str(tmp_path / "spool"), "--drain")
    assert found == {"spool": str(tmp_path / "spool"), "published": 0, "failed": 0, "lost": 0}


def test_a_worker_says_that_a_spool_has_no_job(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["publish", "work", str(tmp_path / "typo"), "--drain"])
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"ett: {tmp_path / 'typo'} has no job to process\n"
