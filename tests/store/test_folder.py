"""A folder as a store: names stay inside, files are whole, others' folders are not private."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchett.store import BusyError, StoreError, lease, open_store, write_whole


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    for url in (str(tmp_path / "a"), (tmp_path / "b").as_uri()):
        store = open_store(url)
        store.write("key/one.ett", b"first")
        store.write("key/one.ett", b"second")
        store.write("head.json", b"{}")
        assert store.read("key/one.ett", limit=100) == b"second"
        assert store.names() == ["head.json", "key/one.ett"]
        assert store.names("key") == ["key/one.ett"]
        store.delete("key/one.ett")
        store.delete("key/one.ett")
        assert store.names() == ["head.json"]


@pytest.mark.parametrize(
    "name", ["../out", "/etc/passwd", "a/../../b", "", "a//b", ".hidden", "a\0b", "a b", "x" * 300]
)
def test_a_name_cannot_lead_out_of_the_store(tmp_path: Path, name: str) -> None:
    store = open_store(str(tmp_path / "store"))
    with pytest.raises(StoreError, match="expected a relative name"):
        store.write(name, b"x")
    with pytest.raises(StoreError, match="expected a relative name"):
        store.read(name, limit=10)
    assert not (tmp_path / "out").exists()


def test_a_file_above_the_limit_is_not_read(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.write("large", b"x" * 100)
    with pytest.raises(StoreError, match="100 bytes, expected at most 99"):
        store.read("large", limit=99)
    with pytest.raises(FileNotFoundError):
        store.read("missing", limit=99)


def test_a_url_that_names_no_folder_is_refused() -> None:
    with pytest.raises(StoreError, match="expected a path or file:///PATH"):
        open_store("file://otherhost/path")


def test_a_folder_is_private_if_nobody_else_can_write_to_it(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "new"))
    assert store.private()
    store.write("a", b"")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "a").stat().st_mode & 0o777 == 0o600
    (tmp_path / "new").chmod(0o770)
    assert not store.private()
    store.write("for/all", b"")
    assert (tmp_path / "new/for/all").stat().st_mode & 0o777 == 0o660
    assert (tmp_path / "new/for").stat().st_mode & 0o777 == 0o770


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: object) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    with pytest.raises(TypeError):
        write_whole(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_lease_has_one_holder_and_is_released_when_the_holder_dies(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    hold = (
        "import sys, time; from pathlib import Path; from torchett.store import lease\n"
        "with lease(Path(sys.argv[1]), timeout_s=1): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(BusyError), lease(path, timeout_s=0.1):
        pass
    holder.kill()
    began = time.monotonic()
    with lease(path, timeout_s=20):
        assert time.monotonic() - began < 10
    holder.wait()
