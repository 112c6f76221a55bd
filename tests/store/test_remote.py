"""A store behind fsspec; memory:// stands in for buckets."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from torchett.store import BusyError, Store, StoreError, open_store
from torchett.store import fsspec_store as remote

pytest.importorskip("fsspec")


def test_objects_are_written_listed_and_deleted() -> None:
    store = open_store("memory://ett-test-objects/deep")
    store.write("key/a.ett", b"1")
    store.write("key/head.json", b"2")
    assert open_store("memory://ett-test-objects/deep").names() == ["key/a.ett", "key/head.json"]
    assert store.read("key/a.ett", limit=10) == b"1"
    with pytest.raises(StoreError, match="expected at most 0"):
        store.read("key/a.ett", limit=0)
    with pytest.raises(FileNotFoundError):
        store.read("key/b.ett", limit=10)
    store.delete("key/a.ett")
    store.delete("key/a.ett")
    assert store.names("key") == ["key/head.json"]
    with pytest.raises(StoreError):
        store.write("../x", b"")


def test_a_lease_keeps_others_out_and_does_not_show_in_listings() -> None:
    store = open_store("memory://ett-test-lease")
    with store.lease("key", timeout_s=1):
        assert store.names() == []
        with pytest.raises(BusyError), open_store(store.url).lease("key", timeout_s=0):
            pass
    with store.lease("key", timeout_s=0):
        pass


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        open_store("nosuchscheme://bucket")


def test_a_lease_is_renewed_until_the_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    holder   ├─ lease ┄ renewed ┄ renewed ┄ renewed ─┤
    other                               ✗ busy
    """
    monkeypatch.setattr(remote, "_LEASE_S", 2.0)
    monkeypatch.setattr(remote, "_SETTLE_S", 0.01)
    store = open_store("memory://ett-test-renewed")
    with store.lease("key", timeout_s=1):
        time.sleep(3)
        with pytest.raises(BusyError), open_store(store.url).lease("key", timeout_s=0):
            pass
    with store.lease("key", timeout_s=0):
        pass


def test_a_lease_expires_if_its_holder_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_LEASE_S", 0.2)
    monkeypatch.setattr(remote, "_SETTLE_S", 0.01)
    store = open_store("memory://ett-test-lapsed")
    assert isinstance(store, remote.FsspecStore)
    store._write_lease("key/lease-writer", "a host that was switched off")
    with store.lease("key", timeout_s=5):
        pass


@pytest.mark.parametrize("exclusive", [True, False])
def test_of_two_that_write_at_once_one_holds_the_lease(
    exclusive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    fast   sees none ── writes, reads itself
    slow   sees none ───────── writes, reads itself
    """
    url = f"memory://ett-test-at-once-{exclusive}"
    both_looked = threading.Barrier(2)
    held: list[str] = []

    class Slow:
        """A bucket in which a write takes a moment."""

        def __init__(self, fs: Any, seconds: float) -> None:
            self._fs, self._seconds = fs, seconds

        def pipe_file(self, path: str, data: bytes, **how: Any) -> None:
            if how and not exclusive:
                raise NotImplementedError
            both_looked.wait(timeout=5)
            time.sleep(self._seconds)
            self._fs.pipe_file(path, data, **how)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._fs, name)

    def work(name: str, seconds: float) -> None:
        store = open_store(url)
        assert isinstance(store, remote.FsspecStore)
        store._fs = Slow(store._fs, seconds)
        try:
            with store.lease("key", timeout_s=0):
                held.append(name)
                time.sleep(1.0)
        except BusyError:
            pass

    threads = [threading.Thread(target=work, args=one) for one in (("fast", 0.0), ("slow", 0.1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 1


def test_of_two_that_create_a_name_one_has_it(tmp_path: Path) -> None:
    for url in ("memory://ett-test-create", str(tmp_path / "folder")):
        store = open_store(url)
        made: list[int] = []

        def create(number: int, store: Store = store, made: list[int] = made) -> None:
            if store.create("log/00000001.json", str(number).encode()):
                made.append(number)

        writers = [threading.Thread(target=create, args=(number,)) for number in range(8)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert store.read("log/00000001.json", limit=9) == str(*made).encode()
        assert store.names("log") == ["log/00000001.json"]


def test_a_file_is_copied_whole(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"x" * 100_000)
    for url in ("memory://ett-test-file", str(tmp_path / "folder")):
        store = open_store(url)
        assert store.size("blobs/a") is None
        store.write_file("blobs/a", tmp_path / "there")
        assert store.size("blobs/a") == 100_000
        store.read_file("blobs/a", tmp_path / "back" / "again")
        assert (tmp_path / "back" / "again").read_bytes() == b"x" * 100_000
        with pytest.raises(FileNotFoundError):
            store.read_file("blobs/b", tmp_path / "b")
        assert not (tmp_path / "b").exists()
