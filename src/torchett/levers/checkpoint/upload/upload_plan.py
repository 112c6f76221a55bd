"""The planner of an upload: the plan was made in the trainer, the data lies in the arena.

Ranks that name the same piece must hold the same bytes, because one of them is kept. Each rank
sends a checksum of such pieces with its plan; rank 0 compares them before anything is written:

    rank 0   model.weight 5f3a9c01   optimizer.step 00c2   ─┐
    rank 1   model.weight 81c2f0aa   optimizer.step 00c2   ─┴─ model.weight differs: an error
"""

import io
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, WriteItemType

from torchett.levers.checkpoint.errors import CheckpointError

_NAMED = 3  # of the names in an error


@dataclass(frozen=True)
class RankPlan(SavePlan):  # type: ignore[misc]
    """DCP's plan of a rank, and what is needed to tell pieces of the same name apart."""

    buffers: frozenset[str] = frozenset()  # of modules; where they differ, rank 0's are kept
    # Ranks of the mesh of each DTensor; of the same mesh, pieces are replicas by their placements:
    meshes: Mapping[str, int] = field(default_factory=dict)
    sharded: frozenset[str] = frozenset()  # over all ranks: no two meshes could differ
    sums: Mapping[Any, int] = field(default_factory=dict)  # of each piece, if they were taken
    # Pieces that are here as well, but copied by that rank of the same node:
    elsewhere: Mapping[Any, int] = field(default_factory=dict)


class UploadPlanner(DefaultSavePlanner):  # type: ignore[misc]
    """DCP's planner, with a local plan given and data looked up by its items."""

    def __init__(
        self,
        plan: Any,
        tensors: list[Any],
        blobs: list[bytes],
        poison: str | None,
        compare: bool = False,
        sums: Mapping[Any, int] | None = None,
    ) -> None:
        super().__init__()
        self._given, self._poison, self._compare = plan, poison, compare
        self._sums = sums or {}  # taken where the tensors were
        self.rank_0_kept: list[str] = []  # buffers that differ between ranks
        items = [] if plan is None else plan.items
        elsewhere = getattr(plan, "elsewhere", {})
        kinds = (
            [
                i.index
                for i in items
                if i.type != WriteItemType.BYTE_IO and i.index not in elsewhere
            ],
            [i.index for i in items if i.type == WriteItemType.BYTE_IO],
        )
        self._data: dict[Any, Any] = {}
        if poison is None:
            self._data.update(zip(kinds[0], tensors, strict=True))
            self._data.update(zip(kinds[1], blobs, strict=True))

    def create_local_plan(self) -> Any:
        if self._poison is not None:
            raise CheckpointError(self._poison)
        self.plan = self._given
        if self._compare and isinstance(self._given, RankPlan):
            sums = {
                item.index: _sum(self._tensor(item))
                for item in self._given.items
                if item.type != WriteItemType.BYTE_IO
                and item.index.fqn not in self._given.sharded
                and item.index not in self._sums
                and item.index not in self._given.elsewhere
            }
            return replace(self._given, sums={**sums, **self._sums})
        return self.plan

    def create_global_plan(self, all_plans: list[Any]) -> Any:
        """On rank 0: DCP's global plan, refused if one name stands for different bytes."""
        problems, self.rank_0_kept = compared(all_plans)
        if problems:
            raise CheckpointError(problems)
        return super().create_global_plan(_lowest_rank_first(_of_copies(all_plans)))

    def _tensor(self, item: Any) -> Any:
        data = self._data[item.index]
        return data() if callable(data) else data

    def resolve_data(self, write_item: Any) -> Any:
        data = self._data[write_item.index]
        return io.BytesIO(data) if isinstance(data, bytes) else self._tensor(write_item)


def compared(plans: Sequence[Any]) -> tuple[str, list[str]]:
    """What to refuse, in a line ("" if nothing), and the buffers of which rank 0's are kept."""
    first: dict[Any, dict[int | None, tuple[int, int]]] = defaultdict(dict)
    shapes: dict[str, tuple[int, Any]] = {}
    wrong: dict[str, tuple[int, int, str]] = {}
    buffers: dict[str, None] = {}
    for rank, plan in enumerate(plans):
        if not isinstance(plan, RankPlan):
            continue
        for item in plan.items:
            name, told = item.index.fqn, item.tensor_data
            shape = None if told is None else (tuple(told.size), told.properties.dtype)
            other, known = shapes.setdefault(name, (rank, shape))
            if known != shape:
                wrong.setdefault(name, (other, rank, f"{known} and {shape}"))
        for index, crc in plan.sums.items():
            seen, mesh = first[index], plan.meshes.get(index.fqn)
            for of, (other, theirs) in seen.items():
                if theirs == crc or (mesh is not None and of == mesh):
                    continue
                if index.fqn in plan.buffers:
                    buffers[index.fqn] = None
                else:
                    wrong.setdefault(index.fqn, (other, rank, "different values"))
            seen.setdefault(mesh, (rank, crc))
    if not wrong:
        return "", list(buffers)
    told = [f"{n} (ranks {a} and {b}: {how})" for n, (a, b, how) in [*wrong.items()][:_NAMED]]
    more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    return (
        f"ranks hold different tensors under the same name: {', '.join(told)}{more}. Give the "
        "parts of different ranks names of their own, make them DTensors, or wrap what each rank "
        "has its own of in torchett.levers.checkpoint.PerRank"
    ), list(buffers)


def _of_copies(plans: Sequence[Any]) -> list[Any]:
    """The plans with each piece where it was copied; refused if one was copied by no rank."""
    found = []
    for plan in plans:
        if not (elsewhere := getattr(plan, "elsewhere", None)):
            found.append(plan)
            continue
        items = [item for item in plan.items if item.index not in elsewhere]
        found.append(replace(plan, items=items, elsewhere={}))
    copied = {item.index for plan in found for item in plan.items}
    lost = [i.index.fqn for plan in plans for i in plan.items if i.index not in copied]
    if lost:
        raise CheckpointError(
            f"{lost[0]} is not on the rank any more that was to copy it: ranks divide the state "
            "anew at the next save"
        )
    return found


def _lowest_rank_first(plans: Sequence[Any]) -> list[Any]:
    """The plans with each value and buffer on the lowest rank that has it, and on no other."""
    taken: set[Any] = set()
    found = []
    for plan in plans:
        buffers = plan.buffers if isinstance(plan, RankPlan) else frozenset()
        items = []
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO or item.index.fqn in buffers:
                if item.index in taken:
                    continue
                taken.add(item.index)
            items.append(item)
        found.append(replace(plan, items=items))
    return found


def _sum(tensor: Any) -> int:
    import torch

    if not tensor.numel():
        return 0
    return zlib.crc32(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())
