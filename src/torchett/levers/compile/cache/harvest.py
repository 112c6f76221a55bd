"""Collects the compile results of a process as entries of an archive."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchett.levers.compile.adapter import caches, winners
from torchett.levers.compile.cache import sidecars
from torchett.levers.compile.cache.archive import NAMES, Entry, Identity, entry, identity_of, merge


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """Entries that the loaded archive lacks, and the identities of all entries that were used."""

    new: Sequence[Entry]
    used: Collection[Identity]


def harvest(cache: Path, there: Collection[Identity]) -> Harvest:
    """The results that this process made or found; entries in `there` are not packed again."""
    now = int(time.time())
    new, used = [], set()
    for kind, name, data in _found(cache):
        identity = identity_of(kind, name, data)
        if identity not in there:
            if kind == "inductor":
                data = winners.only(data)
                identity = identity_of(kind, name, data)
            new.append(entry(kind, name, data, now))
        used.add(identity)
    return Harvest(new=merge((new,)), used=used)


def _found(cache: Path) -> list[tuple[str, str, bytes]]:
    """Artifacts in torch's memory, and files beside them, if an archive accepts their names."""
    artifacts = [(one.kind, one.key, one.content) for one in caches.seen_artifacts()]
    files = sidecars.used_files(cache, caches.device_index())
    return [
        *((kind, name, data) for kind, name, data in artifacts if _named(kind, name)),
        *(
            ("file", name, path.read_bytes())
            for name, path in files.items()
            if _named("file", name)
        ),
    ]


def _named(kind: str, name: str) -> bool:
    return kind in NAMES and NAMES[kind].fullmatch(name) is not None


def with_another_rank(
    ours: Sequence[Entry], theirs: Sequence[Entry], known: Collection[tuple[str, str]]
) -> list[Entry]:
    """The entries of both ranks. A graph that both compiled at the same time is stored once."""
    names = {one.identity[:2] for one in ours}
    new = [one for one in theirs if one.identity[:2] not in names or one.identity[:2] in known]
    return merge((ours, new))
