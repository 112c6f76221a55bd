"""The commit: from files that are written to a checkpoint that is there for good.

    every rank    files (summed, fsynced), folder fsynced
    rank 0        all files are there ─ manifest ─ fsync folder ─ rename ─ fsync parent    durable
                  └ `latest` moves ─ retention                                            after it

A kill between any two of these leaves either no checkpoint or a whole one.
"""

import platform
import time
from collections.abc import Mapping

from torchett.checkpoint import manifest
from torchett.checkpoint.catalog import LATEST, Entry
from torchett.checkpoint.checksum import CHUNK
from torchett.checkpoint.errors import CheckpointError, CorruptCheckpoint
from torchett.checkpoint.manifest import FileSum, Manifest
from torchett.checkpoint.storage import Storage, token
from torchett.checkpoint.writer import Summed


def reached(point: str) -> None:
    """Called after each step of a commit; tests stop the process here."""


def make_manifest(
    step: int,
    world_size: int,
    items: int,
    files: Mapping[str, FileSum],
    metric: float | None,
    per_rank: tuple[str, ...],
) -> Manifest:
    import torch

    from torchett import __version__

    versions = {
        "torchett": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    return Manifest(
        step=step,
        world_size=world_size,
        items=items,
        files=dict(files),
        created_s=time.time(),
        metric=metric,
        per_rank=per_rank,
        versions=versions,
    )


def commit(storage: Storage, place: str, what: Manifest) -> str:
    """The name under which the files at `place` are a checkpoint from now on."""
    reached("files written")
    for name, told in what.files.items():
        try:
            size = storage.size(f"{place}/{name}")
        except FileNotFoundError:
            raise CheckpointError(
                f"{name} cannot be seen by rank 0 under {storage.root}/{place}: "
                "checkpoints need storage that all ranks share"
            ) from None
        if size != told.size:
            raise CheckpointError(f"{name} has {size} bytes, {told.size} were written")
    with storage.write(f"{place}/{manifest.NAME}") as stream:
        stream.write(what.to_bytes())
    reached("manifest written")
    storage.sync(place)
    reached("folder synced")
    final = storage.publish(place, what.step)
    reached("renamed")
    storage.sync("")
    reached("durable")
    return final


def move_latest(storage: Storage, name: str) -> None:
    """Let `latest` say the name of a checkpoint that is durable."""
    storage.replace(LATEST, f"{name}\n".encode())
    storage.sync("")
    reached("latest moved")


def copy_over(entry: Entry, target: Storage) -> str:
    """The name in `target` of a checkpoint copied there, its sums compared on the way."""
    assert entry.manifest is not None
    place = target.place(entry.step, token())
    target.make(place)
    for name, told in entry.manifest.files.items():
        with (
            entry.storage.read(f"{entry.name}/{name}") as source,
            target.write(f"{place}/{name}") as raw,
        ):
            stream = Summed(raw)
            while data := source.read(CHUNK):
                stream.write(data)
        if stream.sum() != told:
            target.delete(place)
            raise CorruptCheckpoint(f"{entry.path}/{name} is not what was written")
    target.sync(place)
    return commit(target, place, entry.manifest)
