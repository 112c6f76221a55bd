"""A checksum by parts is the checksum."""

import zlib
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchett.levers.checkpoint.stored import checksum
from torchett.levers.checkpoint.stored.checksum import crc_of, joined


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_two_parts_joined_are_the_whole(first: bytes, second: bytes) -> None:
    whole = zlib.crc32(first + second)
    assert joined(zlib.crc32(first), zlib.crc32(second), len(second)) == whole


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1000, 12_345])
def test_a_file_by_threads(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "PART", 100)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4))
    data = bytes(i * 31 % 251 for i in range(size))
    (tmp_path / "file").write_bytes(data)

    def open_file() -> IO[bytes]:
        return (tmp_path / "file").open("rb")

    assert crc_of(open_file, size) == zlib.crc32(data)
