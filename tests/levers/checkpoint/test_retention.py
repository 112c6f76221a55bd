"""Retention keeps the last good ones, every n-th, the best and the pinned, and nothing else."""

from pathlib import Path

import pytest

from torchett.levers.checkpoint.stored import manifest
from torchett.levers.checkpoint.stored.catalog import entries
from torchett.levers.checkpoint.stored.manifest import FileSum, Manifest
from torchett.levers.checkpoint.stored.retention import Keep, doomed, retain
from torchett.levers.checkpoint.stored.storage import Folder


def make(storage: Folder, step: int, metric: float | None = None, whole: bool = True) -> None:
    name = f"step-{step:08d}"
    storage.make(name)
    (storage.path / name / "data").write_bytes(b"1234" if whole else b"12")
    told = Manifest(
        step=step,
        world_size=1,
        items=1,
        files={"data": FileSum(size=4, crc32=0)},
        created_s=step,
        metric=metric,
    )
    (storage.path / name / manifest.NAME).write_bytes(told.to_bytes())


def kept(storage: Folder, keep: Keep) -> list[int]:
    retain(storage, keep)
    return [entry.step for entry in entries(storage)]


def test_the_last_ones(tmp_path: Path) -> None:
    storage = Folder(tmp_path)
    for step in range(6):
        make(storage, step)
    assert kept(storage, Keep(last=2)) == [5, 4]


def test_a_bad_one_does_not_count_and_costs_no_good_one(tmp_path: Path) -> None:
    storage = Folder(tmp_path)
    for step in range(4):
        make(storage, step, whole=step < 2)
    assert kept(storage, Keep(last=2)) == [3, 2, 1, 0]


def test_every_nth_the_best_and_the_pinned(tmp_path: Path) -> None:
    storage = Folder(tmp_path)
    for step in range(9, 100, 10):
        make(storage, step, metric=abs(step - 49))
    storage.replace("step-00000019/pinned", b"")
    assert [e.step for e in doomed(entries(storage), Keep(last=1, every=30, best=2))] == [79, 69, 9]
    assert kept(storage, Keep(last=1, every=30, best=2)) == [99, 89, 59, 49, 39, 29, 19]


def test_the_newest_has_to_stay() -> None:
    with pytest.raises(ValueError, match="last=0"):
        Keep(last=0)
