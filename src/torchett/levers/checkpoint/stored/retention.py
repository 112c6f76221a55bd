"""Which checkpoints stay: the last k good ones, every n-th, the best, and those that are pinned."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torchett.levers.checkpoint.stored.catalog import Entry, entries, sizes_differ
from torchett.levers.checkpoint.stored.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """`Keep(last=2, every=1000, best=1)`; pinned checkpoints stay whatever this says."""

    last: int = 2
    every: int | None = None  # steps: the checkpoint of each multiple (or the first after it)
    best: int = 0
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if not isinstance(self.last, int) or isinstance(self.last, bool):
            raise ValueError(f"keep: last={self.last!r}, expected how many of the last ones stay")
        if self.last < 1:
            raise ValueError(f"keep: last={self.last}, but the newest checkpoint has to stay")


def doomed(found: Sequence[Entry], keep: Keep, listed: str | None = None) -> list[Entry]:
    """What retention deletes of `found` (newest first): only ever checkpoints that are whole.

    A checkpoint counts among the last only if all its files are there at their full length, so
    that good ones are not deleted for the sake of bad ones. The one named `listed` was looked at
    right before, by its commit.
    """
    good = [
        entry
        for entry in found
        if entry.manifest is not None and (entry.name == listed or not sizes_differ(entry))
    ]
    kept = {entry.name for entry in good[: keep.last]}
    if keep.every:
        reached = -1
        for entry in reversed(good):
            if (entry.step + 1) // keep.every > reached:
                reached = (entry.step + 1) // keep.every
                kept |= {entry.name} if reached else set()
    if keep.best:
        sign = 1 if keep.mode == "min" else -1
        told = [(sign * m, e.name) for e in good if (m := _metric(e)) is not None]
        kept |= {name for _, name in sorted(told)[: keep.best]}
    return [entry for entry in good if entry.name not in kept and not entry.pinned]


def retain(
    storage: Storage,
    keep: Keep,
    protect: frozenset[str] = frozenset(),
    committed: str | None = None,
) -> list[str]:
    """Names of what was deleted; `committed` is the checkpoint that is new, which stays."""
    found = doomed(entries(storage), keep, committed)
    names = [e.name for e in found if e.name not in protect and e.name != committed]
    for name in names:
        storage.delete(name)
    return names


def _metric(entry: Entry) -> float | None:
    return entry.manifest.metric if entry.manifest is not None else None
