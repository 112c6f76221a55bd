"""A store behind fsspec; memory:// stands in for buckets."""

import pytest

from torchett.store import BusyError, StoreError, open_store

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


def test_a_scheme_nobody_knows_is_refused() -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        open_store("nosuchscheme://bucket")
