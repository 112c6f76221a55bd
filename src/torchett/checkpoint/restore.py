"""Restoring: the newest checkpoint whose every byte is right, the same one on all ranks.

    newest ─ manifest whole? ─ sizes and CRCs? ─ load ──► step + 1
       │          no                 no
       └──────── set aside, named, next older one …        none left: an error, not step 0

Nothing is unpickled before its bytes are known to be right.
"""

import logging
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import Any

from torchett.checkpoint import per_rank
from torchett.checkpoint.blanks import to_fill
from torchett.checkpoint.catalog import Entry, entries, set_aside
from torchett.checkpoint.errors import CheckpointError, StateMismatch
from torchett.checkpoint.prefetch import Prefetch, share
from torchett.checkpoint.ranks import Ranks
from torchett.checkpoint.storage import Storage
from torchett.checkpoint.writer import METADATA

log = logging.getLogger("torchett")


def restore(
    state: MutableMapping[str, Any],
    tiers: Sequence[Storage],
    ranks: Ranks,
    prefetch: Prefetch,
    *,
    skip: Collection[str] = (),
    strict: bool = True,
) -> int | None:
    """The step whose state was loaded into `state`; None if there is no checkpoint at all."""
    candidates = _candidates(tiers, ranks)
    refused: list[str] = []
    for entry in candidates:
        problems = _problems(entry, ranks, prefetch)
        if not problems:
            load(entry, state, ranks, prefetch, skip=skip, strict=strict)
            return entry.step
        refused.append(f"{entry.path}: {'; '.join(problems)}")
        if ranks.rank == 0:
            _put_aside(entry, problems)
    if refused:
        raise CheckpointError(
            f"{len(refused)} checkpoints were found and none can be loaded, so training does not "
            f"begin at step 0 by itself: {' | '.join(refused)[:1500]}. Move them away to begin anew"
        )
    return None


def _candidates(tiers: Sequence[Storage], ranks: Ranks) -> list[Entry]:
    """Every tier's checkpoints, newest first, as rank 0 sees them; the first tier's come first."""
    found: list[tuple[int, Entry]] = []
    trouble = None
    if ranks.rank == 0:
        try:
            for number, storage in enumerate(tiers):
                found += [(number, entry) for entry in entries(storage)]
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
    found.sort(key=lambda pair: (pair[1].step, pair[1].order[1], -pair[0]), reverse=True)
    told = [(n, e.name, e.order, e.manifest, e.problem) for n, e in found]
    trouble, told = ranks.gather((trouble, told))[0]
    if trouble is not None:
        raise CheckpointError(f"{tiers[0].root} cannot be listed: {trouble}")
    return [
        Entry(storage=tiers[n], name=name, order=order, manifest=manifest, problem=problem)
        for n, name, order, manifest, problem in told
    ]


def _problems(entry: Entry, ranks: Ranks, prefetch: Prefetch) -> list[str]:
    """What is wrong with a checkpoint; each rank reads its share of the files."""
    if entry.manifest is None:
        return [entry.problem]
    try:
        mine = prefetch.verified(entry, share(entry.manifest.files, ranks.rank, ranks.size))
    except Exception as error:
        mine = [f"cannot be read: {type(error).__name__}: {error}"]
    return [problem for problems in ranks.gather(mine) for problem in problems]


def _put_aside(entry: Entry, problems: list[str]) -> None:
    said = "; ".join(problems)
    foreign = entry.manifest is None and entry.storage.exists(f"{entry.name}/{METADATA}")
    if foreign and "missing" in entry.problem:
        log.warning("torchett: %s was not written by torchett: left alone", entry.path)
        return
    if any("cannot be read" in problem for problem in problems):
        log.warning("torchett: %s is not used: %s", entry.path, said)
        return
    try:
        aside = set_aside(entry, problems)
        log.warning("torchett: %s is corrupt (%s) and now %s", entry.path, said, aside)
    except OSError as error:
        log.warning("torchett: %s is corrupt (%s) and stays: %s", entry.path, said, error)


def load(
    entry: Entry,
    state: MutableMapping[str, Any],
    ranks: Ranks,
    prefetch: Prefetch,
    *,
    skip: Collection[str] = (),
    strict: bool = True,
) -> None:
    """Load a verified checkpoint in place, by DCP's own load: any number of ranks."""
    import warnings

    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

    from torchett.checkpoint.reader import VerifiedReader

    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    assert entry.manifest is not None
    reader = VerifiedReader(entry, prefetch)
    metadata = reader.read_metadata()
    own = set(entry.manifest.per_rank)
    wanted = {key: value for key, value in state.items() if key not in skip}
    nested: dict[str, Any] = {}
    for key, value in wanted.items():
        if per_rank.is_per_rank(value):
            if key in own:
                nested[key] = {
                    per_rank.name(rank): b"" for rank in range(entry.manifest.world_size)
                }
        elif _is_stateful(value):
            nested[key] = to_fill(key, value, metadata)
        else:
            nested[key] = value
    _complete(nested, wanted, metadata, ranks, strict)
    try:
        dcp_load(
            nested,
            storage_reader=reader,
            planner=DefaultLoadPlanner(allow_partial_load=not strict),
            process_group=ranks.group,
            no_dist=ranks.group is None,
        )
    except CheckpointException as error:
        causes = {f"{type(cause).__name__}: {cause}" for cause, _ in error.failures.values()}
        raise StateMismatch(
            f"{entry.path} is sound but does not fit this state: {' | '.join(sorted(causes))[:800]}"
        ) from None
    for key, value in wanted.items():
        if key not in nested:
            continue
        if per_rank.is_per_rank(value):
            per_rank.unpack(key, value, nested[key], ranks.rank, ranks.size)
        elif _is_stateful(value):
            value.load_state_dict(nested[key])
        else:
            state[key] = nested[key]


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _complete(
    nested: dict[str, Any], wanted: Mapping[str, Any], metadata: Any, ranks: Ranks, strict: bool
) -> None:
    """Add what the checkpoint has and a fresh object's state does not have yet.

    DCP loads only what is asked for: a scheduler that has not begun, say, would lose what it had
    learned, without a word. Of a module nothing may be missing on either side. What any rank asks
    for is not missing: of tables that are sharded whole, each rank has its own.
    """
    import torch
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    from torch.distributed.checkpoint._traverse import set_element
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    have, _ = flatten_state_dict(nested)
    paths = metadata.planner_data
    asked_for = {key for key in nested if wanted.get(key) is not None}
    not_here = {n for n in metadata.state_dict_metadata if n not in have}
    missing = set.intersection(*ranks.gather({n for n in not_here if paths[n][0] in asked_for}))
    foreign = []
    for name, told in metadata.state_dict_metadata.items():
        if name not in missing:
            continue
        path = paths[name]
        if isinstance(wanted[path[0]], torch.nn.Module):
            foreign.append(name)
            continue
        blank: Any = None
        if isinstance(told, TensorStorageMetadata):
            blank = torch.empty(told.size, dtype=told.properties.dtype)
        set_element(nested, path, blank)
    if foreign and strict:
        raise StateMismatch(
            f"the checkpoint has {len(foreign)} tensors that the model has not, {foreign[0]!r} "
            "first: load it with restore(state, strict=False) to leave them out"
        )
