"""Which rank of a node copies what all of its ranks hold alike, as DDP's model and optimizer.

    rank 0   model.0.weight ▒▒▒  model.2.weight      optimizer … ▒▒▒
    rank 1   model.0.weight      model.2.weight ▒▒▒  optimizer …          ▒▒▒ copied and held

Only large plain tensors are divided, and only where every byte of them is the same: ranks compare
a digest of all of them first. Buffers of modules may differ, so each rank keeps its own.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchett.levers.checkpoint.staging.live_sum import sum_of
from torchett.levers.checkpoint.state.pieces import Pieces
from torchett.levers.checkpoint.store_coordinator import Ranks

log = logging.getLogger("torchett")

_LARGE = 64 << 10  # bytes; smaller ones are copied by every rank
_NOTHING = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Who copies which piece; `tried` is what was compared, whether or not it was the same."""

    number: int = 0
    owners: Mapping[Any, int] = field(default_factory=dict)
    tried: frozenset[Any] = frozenset()


def replicated(pieces: Pieces) -> dict[Any, Any]:
    """The large plain tensors, which other ranks may hold as well, by the index of their piece."""
    from torch.distributed.checkpoint.planner import WriteItemType

    items = (item for item in pieces.plan.items if item.type != WriteItemType.BYTE_IO)
    return {
        item.index: tensor
        for item, tensor in zip(items, pieces.tensors, strict=True)
        if item.type == WriteItemType.TENSOR
        and item.index.fqn not in pieces.plan.buffers
        and tensor.nbytes > _LARGE
        and tensor.is_contiguous()
    }


def form_of(found: Mapping[Any, Any]) -> frozenset[Any]:
    """What a division is good for: names, shapes and types."""
    return frozenset((i, tuple(t.shape), str(t.dtype), t.device.type) for i, t in found.items())


def divide(pieces: Pieces | None, ranks: Ranks, here: Sequence[int], number: int) -> Division:
    """The division that the ranks of this node agree on; each of them has to call this."""
    found: dict[Any, Any] = {}
    said = _NOTHING
    try:
        found = {} if pieces is None else replicated(pieces)
        said = _digest(found) if found and len(here) > 1 else _NOTHING
    except Exception as error:
        log.debug("torchett: nothing is divided between ranks: %r", error)
    tried = form_of(found)
    if len(here) < 2:
        return Division(number=number, tried=tried)
    ranks.tell(_key(number, ranks.rank), said)
    alike = [rank for rank in here if ranks.awaited(_key(number, rank)) == said]
    if said == _NOTHING or len(alike) < 2:
        return Division(number=number, tried=tried)
    sizes = {index: tensor.nbytes for index, tensor in found.items()}
    return Division(number=number, owners=owners_of(sizes, alike), tried=tried)


def _key(number: int, rank: int) -> str:
    return f"division/{number}/{rank}"


def owners_of(sizes: Mapping[Any, int], ranks: Sequence[int]) -> dict[Any, int]:
    """The largest first, each to the rank that has least; the same on every rank."""
    loads = dict.fromkeys(ranks, 0)
    owners = {}
    for index in sorted(sizes, key=lambda i: (-sizes[i], i.fqn, tuple(i.offset or ()))):
        owners[index] = min(loads, key=lambda rank: (loads[rank], rank))
        loads[owners[index]] += sizes[index]
    return owners


def own_part(pieces: Pieces, division: Division, rank: int) -> Pieces:
    """The pieces that this rank copies; its plan says which rank copies each of the others.

    A piece that was not there when ranks agreed is copied by every rank that has it.
    """
    if not division.owners:
        return pieces
    elsewhere = {
        index: division.owners[index]
        for index, *form in form_of(replicated(pieces))
        if division.owners.get(index, rank) != rank and (index, *form) in division.tried
    }
    from torch.distributed.checkpoint.planner import WriteItemType

    items = (item for item in pieces.plan.items if item.type != WriteItemType.BYTE_IO)
    return replace(
        pieces,
        plan=replace(pieces.plan, elsewhere=elsewhere),
        plan_id=f"{pieces.plan_id}/{division.number}",
        tensors=[
            tensor
            for item, tensor in zip(items, pieces.tensors, strict=True)
            if item.index not in elsewhere
        ],
    )


def _digest(found: Mapping[Any, Any]) -> str:
    """One for all names, forms and bytes."""
    whole = hashlib.sha256()
    for index, tensor in sorted(found.items(), key=lambda pair: str(pair[0])):
        form = (index.fqn, tuple(index.offset or ()), tuple(tensor.shape), str(tensor.dtype))
        whole.update(repr((form, tensor.device.type, int(sum_of(tensor)))).encode())
    return whole.hexdigest()
