"""Which rank of a node copies what all of its ranks hold alike, as DDP's model and optimizer.

    rank 0   model.0.weight ▒▒▒  model.2.weight      optimizer … ▒▒▒
    rank 1   model.0.weight      model.2.weight ▒▒▒  optimizer …          ▒▒▒ copied and held

Only large plain tensors are divided, and only those of which every byte is the same: ranks compare
checksums first. Buffers of modules may come to differ, so each rank keeps its own.
"""

import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchett.levers.checkpoint.staging.live_sum import sum_of
from torchett.levers.checkpoint.state.pieces import Pieces
from torchett.levers.checkpoint.store_coordinator import Ranks

log = logging.getLogger("torchett")

_LARGE = 64 << 10  # bytes; smaller ones are copied by every rank


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
        and (tensor.nbytes | tensor.storage_offset() * tensor.itemsize) % 4 == 0
    }


def form_of(found: Mapping[Any, Any]) -> frozenset[Any]:
    """What a division is good for: names, shapes and types."""
    return frozenset((i, tuple(t.shape), str(t.dtype), t.device.type) for i, t in found.items())


def divide(pieces: Pieces | None, ranks: Ranks, here: Sequence[int], number: int) -> Division:
    """The division that the ranks of this node agree on; each of them has to call this."""
    found: dict[Any, Any] = {}
    tokens: dict[str, Any] = {}
    try:
        found = {} if pieces is None else replicated(pieces)
        if len(here) > 1:
            tokens = {_token(index, tensor): index for index, tensor in found.items()}
    except Exception as error:
        log.debug("torchett: nothing is divided between ranks: %r", error)
    tried = form_of(found)
    if len(here) < 2:
        return Division(number=number, tried=tried)
    sizes = {token: found[index].nbytes for token, index in tokens.items()}
    ranks.tell(_key(number, ranks.rank), json.dumps(sizes))
    told = {rank: json.loads(ranks.awaited(_key(number, rank))) for rank in here}
    if number:  # all of them have read what was told before
        ranks.forget([_key(number - 1, ranks.rank)])
    owners = owners_of(told)
    return Division(
        number=number,
        owners={index: owners[token] for token, index in tokens.items() if token in owners},
        tried=tried,
    )


def _key(number: int, rank: int) -> str:
    return f"division/{number}/{rank}"


def owners_of(told: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
    """What several ranks have, the largest first, each to the one of them that has least to copy.

    {0: {"a": 9, "b": 5, "c": 4}, 1: {"a": 9, "b": 5, "c": 4}, 2: {"d": 1}}  →  a: 0, b: 1, c: 1
    """
    having: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(told):
        for token in told[rank]:
            having[token].append(rank)
    sizes = {token: told[ranks[0]][token] for token, ranks in having.items()}
    loads = {
        rank: sum(size for token, size in have.items() if len(having[token]) == 1)
        for rank, have in told.items()
    }
    owners = {}
    for token in sorted(sizes, key=lambda token: (-sizes[token], token)):
        if len(having[token]) > 1:
            owners[token] = min(having[token], key=lambda rank: (loads[rank], rank))
            loads[owners[token]] += sizes[token]
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
        plan_id=f"{pieces.plan_id}/{division.number}/{hash(frozenset(elsewhere.items())):x}",
        tensors=[
            tensor
            for item, tensor in zip(items, pieces.tensors, strict=True)
            if item.index not in elsewhere
        ],
    )


def _token(index: Any, tensor: Any) -> str:
    """The same for the same name, form and bytes."""
    form = (index.fqn, tuple(index.offset or ()), tuple(tensor.shape), str(tensor.dtype))
    told = repr((form, tensor.device.type, int(sum_of(tensor))))
    return hashlib.sha256(told.encode()).hexdigest()[:20]
