"""The checkpoints of a storage, by their manifests, and whether their bytes are still the same."""

import json
import logging
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from torchett.levers.checkpoint.errors import CorruptCheckpoint
from torchett.levers.checkpoint.stored import manifest
from torchett.levers.checkpoint.stored.checksum import CHUNK, crc_of
from torchett.levers.checkpoint.stored.manifest import FileSum, Manifest
from torchett.levers.checkpoint.stored.storage import Folder, Storage, order

log = logging.getLogger("torchett")

PINNED = "pinned"
LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A folder that is, or ought to be, a checkpoint."""

    storage: Storage
    name: str
    order: tuple[int, int]
    manifest: Manifest | None  # None: not whole, `problem` says why
    problem: str = ""

    @property
    def step(self) -> int:
        return self.order[0]

    @property
    def path(self) -> str:
        return f"{self.storage.root.rstrip('/')}/{self.name}"

    @property
    def pinned(self) -> bool:
        return self.storage.exists(f"{self.name}/{PINNED}")


def entries(storage: Storage) -> list[Entry]:
    """Every checkpoint, newest first; an object store's unfinished ones are left out."""
    found = []
    for name in storage.names():
        place = order(name)
        if place is None:
            continue
        try:
            whole, problem = read_manifest(storage, name), ""
        except FileNotFoundError:
            if "-" in name.removeprefix("step-"):
                continue  # an object store's, still being written or put aside
            whole, problem = None, f"{manifest.NAME} is missing"
        except CorruptCheckpoint as error:
            whole, problem = None, str(error)
        found.append(
            Entry(storage=storage, name=name, order=place, manifest=whole, problem=problem)
        )

    def age(entry: Entry) -> tuple[int, int, float]:
        return (*entry.order, entry.manifest.created_s if entry.manifest else 0.0)

    return sorted(found, key=age, reverse=True)


def read_manifest(storage: Storage, name: str) -> Manifest:
    return Manifest.from_bytes(storage.contents(f"{name}/{manifest.NAME}"))


def latest(storage: Storage) -> str | None:
    """The name that `latest` holds: the newest checkpoint that was durable."""
    try:
        return storage.contents(LATEST).decode().strip() or None
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def sizes_differ(entry: Entry) -> list[str]:
    """What is missing or of another length: one listing, which reads no data."""
    assert entry.manifest is not None
    sizes = entry.storage.sizes(entry.name)
    problems = []
    for name, told in entry.manifest.files.items():
        if name not in sizes:
            problems.append(f"{name} is missing")
        elif sizes[name] != told.size:
            problems.append(f"{name} has {sizes[name]} bytes, {told.size} were written")
    return problems


def verify(entry: Entry, files: Iterable[str] | None = None) -> list[str]:
    """What is wrong with these files (all of them) by size and CRC; nothing is unpickled."""
    if entry.manifest is None:
        return [entry.problem]
    problems = []
    for name in entry.manifest.files if files is None else files:
        told = entry.manifest.files[name]
        try:
            found = sum_of(entry.storage, f"{entry.name}/{name}")
        except FileNotFoundError:
            problems.append(f"{name} is missing")
            continue
        if found.size != told.size:
            problems.append(f"{name} has {found.size} bytes, {told.size} were written")
        elif found.crc32 != told.crc32:
            problems.append(f"{name} has CRC {found.crc32:08x}, {told.crc32:08x} was written")
    return problems


def sum_of(storage: Storage, path: str) -> FileSum:
    """Size and CRC of a file as it now lies there."""
    if isinstance(storage, Folder):  # where reading in many places costs nothing
        size = storage.size(path)
        return FileSum(size=size, crc32=crc_of(lambda: storage.read(path), size))
    size = crc = 0
    with storage.read(path) as stream:
        while data := stream.read(CHUNK):
            crc = zlib.crc32(data, crc)
            size += len(data)
    return FileSum(size=size, crc32=crc)


def set_aside(entry: Entry, problems: list[str]) -> str:
    """The new name of a corrupt checkpoint, which now says of itself what is wrong."""
    aside = entry.storage.quarantine(entry.name)
    said = json.dumps({"name": entry.name, "problems": problems}).encode()
    try:
        entry.storage.replace(f"{aside.partition(' ')[0]}/quarantined.json", said)
    except OSError as error:
        log.debug("torchett: %s has no note: %s", aside, error)
    return aside
