"""Loading: what was verified is put into a job's state, in place, by DCP's own load."""

import warnings
from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from torchett.levers.checkpoint.errors import StateMismatch
from torchett.levers.checkpoint.state import per_rank
from torchett.levers.checkpoint.state.optimizer_names import Names, ParameterNames, load_by_name
from torchett.levers.checkpoint.state.optimizer_state import (
    is_saved_by_name,
    to_fill,
    to_fill_by_name,
)
from torchett.levers.checkpoint.store_coordinator import Ranks
from torchett.levers.checkpoint.torch_names import flatten_state_dict, set_element


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A verified state to load: a checkpoint of all ranks, or this rank's own part of one."""

    path: str
    reader: Any
    world_size: int
    per_rank: frozenset[str]
    is_part: bool = False


def load(
    stored: Stored,
    state: MutableMapping[str, Any],
    ranks: Ranks,
    *,
    skip: Collection[str] = (),
    strict: bool = True,
) -> None:
    """Load in place; a whole checkpoint into any number of ranks, a part without the others."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    metadata = stored.reader.read_metadata()
    group = None if stored.is_part else ranks.group
    wanted = {key: value for key, value in state.items() if key not in skip}
    nested, named = _to_fill(stored, state, wanted, metadata, ranks)
    not_here = _not_here(nested, wanted, metadata, frozenset(named))
    missing = not_here if stored.is_part else set.intersection(*ranks.gather(not_here))
    _complete(nested, wanted, metadata, missing, strict)
    try:
        dcp_load(
            nested,
            storage_reader=stored.reader,
            planner=DefaultLoadPlanner(allow_partial_load=not strict),
            process_group=group,
            no_dist=group is None,
        )
    except CheckpointException as error:
        causes = {f"{type(cause).__name__}: {cause}" for cause, _ in error.failures.values()}
        raise StateMismatch(
            f"{stored.path} is sound but does not fit this state: "
            f"{' | '.join(sorted(causes))[:800]}"
        ) from None
    for key, value in wanted.items():
        if key not in nested:
            continue
        if per_rank.is_per_rank(value):
            per_rank.unpack(
                key, value, nested[key], ranks.rank, ranks.size, saved=stored.world_size
            )
        elif key in named:
            load_by_name(key, value, named[key], nested[key])
        elif _is_stateful(value):
            value.load_state_dict(nested[key])
        else:
            state[key] = nested[key]


def _to_fill(
    stored: Stored,
    state: Mapping[str, Any],
    wanted: Mapping[str, Any],
    metadata: Any,
    ranks: Ranks,
) -> tuple[dict[str, Any], dict[str, Names]]:
    """What DCP is to fill, by key; and the parameter names of optimizers that are saved by name."""
    import torch

    packed = [ranks.rank] if stored.is_part else range(stored.world_size)
    nested: dict[str, Any] = {}
    names, named = ParameterNames(), dict[str, Names]()
    for key, value in wanted.items():
        if per_rank.is_per_rank(value):
            if key in stored.per_rank:
                nested[key] = {per_rank.name(rank): b"" for rank in packed}
        elif isinstance(value, torch.optim.Optimizer):
            found = names.of(value, state)
            if is_saved_by_name(key, metadata):
                nested[key] = to_fill_by_name(key, value, metadata, found)
                named[key] = found or []
            else:
                nested[key] = to_fill(key, value, metadata)
        elif _is_stateful(value):
            nested[key] = value.state_dict()
        else:
            nested[key] = value
    return nested, named


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _not_here(
    nested: dict[str, Any], wanted: Mapping[str, Any], metadata: Any, named: frozenset[str]
) -> set[str]:
    """Names that the checkpoint has of what is asked for, and this rank's state has not."""
    have, _ = flatten_state_dict(nested)
    asked_for = {key for key in nested if wanted.get(key) is not None and key not in named}
    return {
        name
        for name in metadata.state_dict_metadata
        if name not in have and metadata.planner_data[name][0] in asked_for
    }


def _complete(
    nested: dict[str, Any],
    wanted: Mapping[str, Any],
    metadata: Any,
    missing: set[str],
    strict: bool,
) -> None:
    """Add what the checkpoint has and a fresh object's state does not have yet.

    DCP loads only what is asked for: a scheduler that has not begun, say, would lose what it had
    learned, without a word. Of a module nothing may be missing on either side. What any rank asks
    for is not missing: of tables that are sharded whole, each rank has its own.
    """
    import torch
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    foreign = []
    for name, told in metadata.state_dict_metadata.items():
        if name not in missing:
            continue
        path = metadata.planner_data[name]
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
