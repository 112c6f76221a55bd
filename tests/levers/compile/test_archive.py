"""An archive is used only if every byte is unchanged."""

import zlib
from typing import Any

import pytest
from archives import ENVIRONMENT, KEY, OTHER_KEY, WORDS, forged, graph, library_file, row
from hypothesis import given, settings
from hypothesis import strategies as st

from torchett.levers.compile.cache.archive import (
    MOST_BYTES,
    RefusedError,
    contents,
    entry,
    merge,
    pack,
    unpack,
    within,
)
from torchett.levers.compile.cache.environment import nearness, stale

PLAIN = pack(WORDS, [graph("a", b"one" * 1000), library_file("b")], KEY)


def test_packed_entries_are_unpacked() -> None:
    archive = unpack(PLAIN, KEY)
    assert dict(archive.environment) == WORDS
    assert archive.made_by == KEY.name
    found = {(one.kind, one.name): data for one, data in contents(archive)}
    assert found == {
        ("inductor", "a" * 52): b"one" * 1000,
        ("file", f"bb/c{'b' * 51}.main.so"): b"\x7fELF",
    }


def refused(data: bytes, key: Any = KEY) -> str:
    with pytest.raises(RefusedError) as why:
        contents(unpack(data, key))
    return str(why.value)


def test_an_unsigned_archive_is_refused_with_advice() -> None:
    assert "not signed: set ETT_CACHE_KEY" in refused(pack(WORDS, [graph("a")], None))


def test_an_archive_signed_by_another_is_refused() -> None:
    assert "signed with key" in refused(pack(WORDS, [graph("a")], OTHER_KEY))
    assert "no key to check it with: set ETT_CACHE_KEY" in refused(PLAIN, None)


def test_a_forged_seal_is_refused() -> None:
    """The seal has the right key's name, but the manifest is another one."""
    bad = PLAIN.replace(b'"workload":"gpt/train.py"', b'"workload":"xyz/train.py"')
    assert bad != PLAIN
    assert "forged" in refused(bad)


def test_another_payload_under_a_good_seal_is_refused() -> None:
    bad = bytearray(PLAIN)
    bad[-1] ^= 1
    assert "damaged" in refused(bytes(bad))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(PLAIN) - 1))
def test_a_truncated_archive_is_refused(length: int) -> None:
    refused(PLAIN[:length])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(PLAIN) - 1), st.integers(1, 255))
def test_an_archive_with_a_changed_byte_is_refused(at: int, change: int) -> None:
    bad = bytearray(PLAIN)
    bad[at] ^= change
    refused(bytes(bad))


def test_other_files_are_refused() -> None:
    assert "not an archive of ours" in refused(b"PK\x03\x04 whatever")
    assert "not an archive of ours" in refused(b"")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("autotune", "../../home/user/.bashrc"),
        ("autotune", "/etc/cron.d/x"),
        ("autotune", "ab/../../../x.best_config"),
        ("inductor", "../escape/aaaaaaaaaaaaaaaaaaaa"),
        ("aot_autograd", "a" * 20 + "/../../b"),
        ("file", "../out.so"),
        ("file", "ab/../../x.so"),
        ("file", "/tmp/x.so"),
        ("file", "ab/c" + "a" * 51 + ".so\n"),
        ("file", "ett-pins/../x.json"),
        ("file", "ett-pins/.json"),
        ("file", "fxgraph/aa/" + "a" * 52 + "/pickle"),
        ("file", "ab/sitecustomize.py"),
        ("precompile", "a" * 52),
        ("pickle", "a" * 52),
    ],
)
def test_a_signed_entry_outside_the_cache_folder_is_refused(kind: str, name: str) -> None:
    """Even a holder of the key cannot name a file outside the cache folder."""
    made, stored = row(kind, name, b"hostile")
    assert "an entry of kind" in refused(forged([made], stored))
    with pytest.raises(RefusedError):
        entry(kind, name, b"hostile")


def test_an_archive_that_would_unpack_to_too_much_is_refused() -> None:
    bomb = zlib.compress(b"\0" * (64 << 20), 9)
    small, stored = row("inductor", "a" * 52, b"\0" * (64 << 20), size=100)
    assert "is not the 100 bytes it says" in refused(forged([small], stored))
    huge = ["inductor", "a" * 52, 1 << 40, len(bomb), "0" * 64, 0]
    assert "it would unpack to 1099511627776 bytes" in refused(forged([huge], bomb))
    many = [row("inductor", "a" * 52, b"")[0]] * 20_001
    assert "20001 entries, expected at most 20000" in refused(forged(many, b""))
    assert "impossible sizes" in refused(forged([["inductor", "a" * 52, -1, 0, "", 0]], b""))
    assert MOST_BYTES < 1 << 30


def test_an_entry_that_is_not_what_it_says_is_refused() -> None:
    made, stored = row("inductor", "a" * 52, b"data")
    made[4] = "0" * 64
    assert "does not match its sha256" in refused(forged([made], stored))
    made, stored = row("inductor", "a" * 52, b"data")
    longer = [*made[:3], len(stored) + 1, *made[4:]]
    assert "is not the 4 bytes" in refused(forged([longer], stored + b"x"))
    assert "cannot be unpacked" in refused(forged([made], b"x" * len(stored)))


@pytest.mark.parametrize(
    "changes",
    [{"format": 2}, {"entries": 7}, {"entries": [[1]]}, {"payload": None}, {"environment": []}],
)
def test_a_manifest_that_is_not_one_is_refused(changes: dict[str, Any]) -> None:
    made, stored = row("inductor", "a" * 52, b"data")
    refused(forged([made], stored, **changes))


def test_merging_keeps_both_sides() -> None:
    one, two, other_shapes = graph("a"), graph("b"), graph("a", b"for other shapes")
    both = merge(([one, library_file("c")], [two, other_shapes, library_file("c", b"newer")]))
    assert sorted((e.name[0], e.size) for e in both) == [("a", 5), ("a", 16), ("b", 5), ("c", 5)]


def test_entries_used_longest_ago_are_dropped_first() -> None:
    old, new = entry("inductor", "a" * 52, b"x" * 60, 1), entry("inductor", "b" * 52, b"x" * 60, 2)
    assert within([old, new], 100) == [new]
    assert len(within([old, new], 120)) == 2


def test_an_environment_is_near_or_stale() -> None:
    assert nearness(ENVIRONMENT, WORDS) == 15
    assert nearness(ENVIRONMENT, WORDS | {"threads": "8"}) == 13
    assert nearness(ENVIRONMENT, WORDS | {"torch": "2.12.0 def"}) == -1
    assert stale(ENVIRONMENT, WORDS | {"threads": "8"}) is None
    assert "made with torch '2.12.0 def'" in str(
        stale(ENVIRONMENT, WORDS | {"torch": "2.12.0 def"})
    )
