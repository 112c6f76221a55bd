"""A file is written whole or it is an error; a commit and a retention list, file by file never."""

import json
import resource
import signal
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from trainer import in_child

from torchett.levers.checkpoint import CheckpointError, Keep
from torchett.levers.checkpoint.stored import manifest
from torchett.levers.checkpoint.stored.catalog import entries
from torchett.levers.checkpoint.stored.manifest import FileSum
from torchett.levers.checkpoint.stored.retention import retain
from torchett.levers.checkpoint.stored.storage import Folder, Storage, open_storage
from torchett.levers.checkpoint.upload import commit
from torchett.levers.checkpoint.upload.commit import make_manifest


def written(storage: Storage, step: int, files: int = 3) -> Any:
    """The files of a checkpoint at their place, and the manifest that is to be committed."""
    place = storage.place(step, "5f3a9c01")
    storage.make(place)
    sums = {}
    for number in range(files):
        with storage.write(f"{place}/__{number}_0.distcp") as stream:
            stream.write(b"data")
        sums[f"__{number}_0.distcp"] = FileSum(size=4, crc32=zlib.crc32(b"data"))
    return place, make_manifest(step, files, files, sums, None, ())


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A write that would pass the limit is cut short; the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_manifest_that_does_not_fit_is_no_checkpoint(tmp_path: Path) -> None:
    def work() -> None:
        storage = Folder(tmp_path)
        place, made = written(storage, 5)
        with files_of_at_most(100), pytest.raises(OSError, match="File too large"):
            commit.commit(storage, place, made)
        assert entries(storage) == []

    assert in_child(work) == 0


def test_latest_keeps_its_value_where_the_new_one_does_not_fit(tmp_path: Path) -> None:
    def work() -> None:
        storage = Folder(tmp_path)
        storage.replace("latest", b"old\n")
        with files_of_at_most(3), pytest.raises(OSError, match="File too large"):
            storage.replace("latest", b"step-00000009\n")
        assert (tmp_path / "latest").read_bytes() == b"old\n"
        assert [path.name for path in tmp_path.iterdir()] == ["latest"]

    assert in_child(work) == 0


class Counted:
    """An fsspec file system that counts the requests it is sent."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.requests = inner, Counter[str]()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self._inner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.requests[name] += name != "invalidate_cache"
            return function(*args, **kwargs)

        return call


def test_a_commit_of_a_thousand_ranks_takes_few_requests() -> None:
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").store.clear()
    storage: Any = open_storage("memory://thousand/job")
    for step in (1, 3, 5, 7):
        place, made = written(storage, step, 1000)
        counted = storage._fs = Counted(storage._fs)
        name = commit.commit(storage, place, made)
        commit.move_latest(storage, name)
        gone = retain(storage, Keep(last=2), committed=name)
        storage._fs = counted._inner
        assert counted.requests.total() <= 16, counted.requests
    assert gone == ["step-00000003-5f3a9c01"]
    assert [entry.step for entry in entries(storage)] == [7, 5]


def test_a_file_that_rank_0_cannot_see_is_no_checkpoint(tmp_path: Path) -> None:
    storage = Folder(tmp_path)
    place, made = written(storage, 5)
    (tmp_path / place / "__1_0.distcp").unlink()
    with pytest.raises(CheckpointError, match="storage that all ranks share"):
        commit.commit(storage, place, made)
    assert json.loads(made.to_bytes())["step"] == 5
    assert not (tmp_path / place / manifest.NAME).exists()
