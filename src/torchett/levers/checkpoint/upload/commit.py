"""The commit: from files that are written to a checkpoint that is there for good.

    every rank    files (summed, fsynced), folder fsynced
    rank 0        all files are there ─ manifest ─ fsync folder ─ rename ─ fsync parent    durable
                  └ `latest` moves ─ retention                                            after it

A kill between any two of these leaves either no checkpoint or a whole one.
"""

import platform
import time
from collections.abc import Mapping

from torchett.levers.checkpoint.errors import CheckpointError, CorruptCheckpoint
from torchett.levers.checkpoint.stored import manifest
from torchett.levers.checkpoint.stored.catalog import LATEST
from torchett.levers.checkpoint.stored.checksum import CHUNK
from torchett.levers.checkpoint.stored.manifest import FileSum, Manifest
from torchett.levers.checkpoint.stored.storage import Storage, write_all
from torchett.levers.checkpoint.upload.writer import Summed


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
    sizes = storage.sizes(place)
    for name, told in what.files.items():
        if name not in sizes:
            raise CheckpointError(
                f"{name} cannot be seen by rank 0 under {storage.root}/{place}: "
                "checkpoints need storage that all ranks share"
            )
        if sizes[name] != told.size:
            raise CheckpointError(f"{name} has {sizes[name]} bytes, {told.size} were written")
    with storage.write(f"{place}/{manifest.NAME}") as stream:
        write_all(stream, what.to_bytes())
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


def copy_file(
    source: Storage, name: str, target: Storage, place: str, file: str, told: FileSum
) -> None:
    """Copy a file of the checkpoint `name`; its sum is compared on the way."""
    with (
        source.read(f"{name}/{file}") as reads,
        target.write(f"{place}/{file}") as writes,
    ):
        stream = Summed(writes)
        while data := reads.read(CHUNK):
            stream.write(data)
    if stream.sum() != told:
        raise CorruptCheckpoint(f"{source.root}/{name}/{file} is not what was written")
