"""Reading a checkpoint outside of training: from any process, without ranks, and read-only.

    Checkpointer.load("checkpoints/run-7", keys="model", dtype=torch.bfloat16)
    →  {"model": {"0.weight": tensor, …}}

Whole tensors come back, whichever ranks wrote their parts. Only the files that hold what was asked
for are read, and each is verified before anything of it is used.
"""

import fnmatch
import io
import logging
import os
from collections.abc import Iterable
from typing import Any

from torchett.levers.checkpoint.errors import CheckpointError, CorruptCheckpoint
from torchett.levers.checkpoint.state.contents import Contents
from torchett.levers.checkpoint.stored.catalog import Entry, entries
from torchett.levers.checkpoint.stored.storage import named_storage

log = logging.getLogger("torchett")


def load(
    where: "str | os.PathLike[str]",
    keys: str | Iterable[str] | None = None,
    *,
    dtype: Any = None,
    device: Any = "cpu",
) -> dict[str, Any]:
    """The values of a checkpoint, nested as they were saved.

    `where` is a checkpoint, or a folder or address of which the newest good one is taken. `keys`
    are names as `ett checkpoint diff` shows them, or the first parts of names ("model",
    "model.layers.0"), or patterns ("model.*.bias"). `dtype` is for tensors of floating point.
    """
    wanted = [keys] if isinstance(keys, str) else None if keys is None else list(keys)
    problems = []
    for entry in found_at(where):
        if entry.manifest is None:
            problems.append(f"{entry.path}: {entry.problem}")
            continue
        try:
            return _read(entry, wanted, dtype, device)
        except CorruptCheckpoint as error:
            problems.append(str(error))
            log.warning("torchett: %s", error)
    raise CorruptCheckpoint(f"{os.fspath(where)} has no good checkpoint: {' | '.join(problems)}")


def found_at(where: "str | os.PathLike[str]") -> list[Entry]:
    """The checkpoint of this path, or all under it, newest first."""
    path = os.fspath(where).rstrip("/")
    folder, _, name = path.rpartition("/")
    one = [entry for entry in entries(named_storage(folder or ".")) if entry.name == name]
    found = one or entries(named_storage(path))
    if not found:
        raise CheckpointError(f"{path} has no checkpoints: expected folders such as step-00000039")
    return found


def _read(entry: Entry, wanted: list[str] | None, dtype: Any, device: Any) -> dict[str, Any]:
    import torch
    from torch.distributed.checkpoint._traverse import set_element

    assert entry.manifest is not None
    contents = Contents(entry, at_once=False)
    own = frozenset(entry.manifest.per_rank)
    state: dict[str, Any] = {}
    unmatched = set(wanted or ())
    for name in contents.names():
        path = contents.path(name)
        matching = [key for key in wanted or () if name_matches(name, key)]
        unmatched -= set(matching)
        if not matching and (wanted is not None or path[0] in own):
            continue  # what each rank has its own of comes only where it is named
        value = contents.value(name)
        if isinstance(value, torch.Tensor):
            to = dtype if value.is_floating_point() else None
            value = value.to(device=device, dtype=to)
        elif path[0] in own:
            value = torch.load(io.BytesIO(value), weights_only=False)
        set_element(state, path, value)
    if unmatched:
        tops = sorted({str(contents.path(name)[0]) for name in contents.names()})
        raise CheckpointError(
            f"{entry.path} has no {sorted(unmatched)[0]!r}: it holds {', '.join(tops)}"
        )
    return state


def name_matches(name: str, key: str) -> bool:
    """Whether a key that a user gave names this value."""
    return name == key or name.startswith(f"{key}.") or fnmatch.fnmatchcase(name, key)
