"""`ett compile cache …` on libraries with one key each, the default."""

import json
from pathlib import Path

import pytest
from archives import ENVIRONMENT, WORDS, graph
from click.testing import CliRunner, Result

from torchett.cli.main import main
from torchett.levers.compile.cache.library import Addition, Library
from torchett.levers.compile.cache.signing import key_for
from torchett.store import open_store


def ett(*args: object) -> Result:
    return CliRunner().invoke(main, ["compile", "cache", *map(str, args)])


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library with one archive."""
    for name in ("ETT_CACHE_KEY", "ETT_CACHE_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    store = open_store(str(tmp_path / "old"))
    library = Library(store, key_for(store, {}, create=True))
    library.publish(WORDS, ENVIRONMENT.key, Addition(entries=[graph("a")]))
    return tmp_path / "old"


@pytest.fixture
def pulled(old: Path) -> Path:
    file = old.parent / "taken" / "out" / "pulled.ett"
    assert ett("pull", old, ENVIRONMENT.key, file).exit_code == 0
    return file


def test_an_archive_of_another_library_is_refused_with_the_key_to_give(
    pulled: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    for args in (("push", pulled, new), ("show", pulled)):
        done = ett(*args)
        assert done.exit_code == 2
        assert "signed with key" in done.output
        assert "give --key-file OLD/.key, the key of the library it comes from" in done.output
        assert done.output.count("\n") == 1
    assert not new.exists()


def test_the_old_librarys_key_reads_it(old: Path, pulled: Path, tmp_path: Path) -> None:
    key = ("--key-file", old / ".key")
    assert ett("show", pulled, *key).exit_code == 0
    assert ett("verify", pulled, *key).exit_code == 0
    assert ett("push", pulled, tmp_path / "new", *key).exit_code == 0
    assert ett("verify", tmp_path / "new").exit_code == 0
    assert (tmp_path / "new" / ".key").read_bytes() != (old / ".key").read_bytes()


def test_a_library_is_read_with_the_key_that_was_given(old: Path, pulled: Path) -> None:
    key = (old / ".key").rename(old.parent / "key")
    assert ett("show", old, ENVIRONMENT.key, "--key-file", key).exit_code == 0
    assert ett("verify", old, "--key-file", key).exit_code == 0
    assert ett("verify", old).exit_code == 1


def test_a_pulled_file_is_written_to_the_target_of_a_link(old: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    assert ett("pull", old, ENVIRONMENT.key, tmp_path / "link").exit_code == 0
    assert (tmp_path / "link").is_symlink()
    again = ("--key-file", old / ".key", "-o", tmp_path / "link")
    assert ett("merge", tmp_path / "target", tmp_path / "target", *again).exit_code == 0
    assert (tmp_path / "link").is_symlink()
    full = ett("pull", old, ENVIRONMENT.key, tmp_path)
    assert (full.exit_code, "not writable" in full.output) == (2, True)


def test_a_file_is_no_library(old: Path, pulled: Path) -> None:
    done = ett("push", pulled, pulled, "--key-file", old / ".key")
    assert done.exit_code == 2
    assert "expected a folder with archives, found a file" in done.output


def test_nothing_is_deleted_by_an_age_below_zero(old: Path) -> None:
    assert ett("gc", old, "--older-than", "-5").exit_code == 2
    assert ett("verify", old).output.startswith("good")


def test_what_was_copied_is_said_as_json(old: Path, pulled: Path, tmp_path: Path) -> None:
    key = ("--key-file", old / ".key", "--json")
    file = tmp_path / "again.ett"
    size = pulled.stat().st_size
    assert json.loads(ett("pull", old, ENVIRONMENT.key, file, "--json").stdout) == {
        "url": str(old), "key": ENVIRONMENT.key, "file": str(file), "bytes": size,
    }  # fmt: skip
    merged = json.loads(ett("merge", file, pulled, "-o", tmp_path / "one", *key).stdout)
    assert merged["entries"] == 1
    assert merged["bytes"] == (tmp_path / "one").stat().st_size
    pushed = json.loads(ett("push", pulled, tmp_path / "new", *key).stdout)
    assert pushed["archive"]
    assert json.loads(ett("push", pulled, tmp_path / "new", *key).stdout)["reason"] == "nothing new"
