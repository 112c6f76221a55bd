"""Where a key comes from, and which stores need a given key."""

from pathlib import Path

import pytest

from torchett.levers.compile.cache.signing import key_for
from torchett.model.errors import InputError
from torchett.store import open_store


def test_a_private_folder_makes_its_own_key(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "cache"))
    assert key_for(store, {}) is None
    made = key_for(store, {}, create=True)
    assert made is not None
    assert made == key_for(store, {})
    assert (tmp_path / "cache/.key").stat().st_mode & 0o777 == 0o600
    assert store.names() == []


def test_a_folder_that_others_can_write_to_needs_a_given_key(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    store = open_store(str(tmp_path))
    assert key_for(store, {}, create=True) is None
    given = key_for(store, {"ETT_CACHE_KEY": "x" * 32}, create=True)
    assert given is not None
    assert not (tmp_path / ".key").exists()


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("y" * 40 + "\n")
    file.chmod(0o644)
    store, env = open_store(str(tmp_path)), {"ETT_CACHE_KEY_FILE": str(file)}
    with pytest.raises(InputError, match="chmod 600"):
        key_for(store, env)
    file.chmod(0o600)
    found = key_for(store, env)
    assert found == key_for(store, {"ETT_CACHE_KEY": "y" * 40})
    assert "y" * 40 not in repr(found)


def test_a_short_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a secret of 32 or more, found 5"):
        key_for(open_store(str(tmp_path)), {"ETT_CACHE_KEY": "short"})


def test_a_bucket_needs_a_given_key() -> None:
    pytest.importorskip("fsspec")
    assert key_for(open_store("memory://ett-test-signing"), {}) is not None
