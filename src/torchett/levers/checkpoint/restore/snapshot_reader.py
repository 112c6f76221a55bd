"""DCP's reader of a snapshot in memory: one rank's own part, where it was copied to.

Of what all ranks of a node held alike, each has copied a part: their parts are added to it. Its
metadata is made of this rank's plan alone, so it serves a rank that is sharded as the one that
wrote it. What is asked for beyond that is an error, never left as it was.
"""

import io
import math
import pickle
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader

from torchett.levers.checkpoint.errors import StateMismatch
from torchett.levers.checkpoint.torch_names import copy_all, narrow


class SnapshotReader(StorageReader):  # type: ignore[misc]
    """Reads what was verified before: `head` is unpickled, `memory` viewed."""

    def __init__(self, head: bytes, memory: Any) -> None:
        super().__init__()
        plan, slots, blobs, self.per_rank = _opened(head)
        values = [i.index for i in plan.items if i.type == WriteItemType.BYTE_IO]
        self._slots = {index: (slot, memory) for index, slot in slots.items()}
        self._blobs = dict(zip(values, blobs, strict=True))
        self._elsewhere = plan.elsewhere
        _, metadata = create_default_global_save_plan([plan])
        self._metadata = replace(metadata, planner_data=plan.planner_data)

    @property
    def elsewhere(self) -> list[int]:
        """The ranks whose parts hold the rest of what this rank had."""
        return sorted(set(self._elsewhere.values()))

    def add(self, rank: int, head: bytes, memory: Any) -> None:
        """Another rank's part of the same snapshot, verified as well."""
        slots = _opened(head)[1]
        for index, owner in self._elsewhere.items():
            if owner == rank and index in slots:
                self._slots[index] = (slots[index], memory)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        return self._metadata

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        return plans

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Copy each part out of the memory; StateMismatch if it does not hold all of a tensor."""
        targets, views, items, filled = [], [], [], Counter[str]()
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(self._blobs[item.storage_index]))
                continue
            found = self._slots.get(item.storage_index)
            if found is None:
                raise StateMismatch(f"{item.dest_index.fqn} is in no rank's part")
            slot, memory = found
            view = narrow(slot.view(memory), item.storage_offsets, item.lengths)
            target = planner.resolve_tensor(item).detach()
            if target.size() != view.size():
                raise StateMismatch(
                    f"{item.dest_index.fqn}: expected size {tuple(target.size())}, "
                    f"found {tuple(view.size())}"
                )
            filled[item.dest_index.fqn] += math.prod(item.lengths)
            targets.append(target)
            views.append(view)
            items.append(item)
        for name, value in planner.state_dict.items():
            wanted = _numbers_here(value)
            if wanted is not None and wanted != filled[name]:
                raise StateMismatch(
                    f"{name}: this rank needs {wanted} numbers, its snapshot has {filled[name]}"
                )
        if targets:
            copy_all(targets, views)
        for item, target in zip(items, targets, strict=True):
            planner.commit_tensor(item, target)
        future: Any = torch.futures.Future()
        future.set_result(None)
        return future


def _opened(head: bytes) -> tuple[Any, dict[Any, Any], list[bytes], tuple[str, ...]]:
    """The plan, where each tensor of this part lies, the small values, what is per rank."""
    planned, blobs, per_rank = pickle.loads(head)
    plan, slots = pickle.loads(planned)
    copied = (
        i.index
        for i in plan.items
        if i.type != WriteItemType.BYTE_IO and i.index not in plan.elsewhere
    )
    return plan, dict(zip(copied, slots, strict=True)), blobs, per_rank


def _numbers_here(value: Any) -> int | None:
    """How many numbers of a tensor lie on this rank; None of what is none."""
    if hasattr(value, "local_shards"):
        return sum(int(shard.tensor.numel()) for shard in value.local_shards())
    if not isinstance(value, torch.Tensor):
        return None
    return int(getattr(value, "_local_tensor", value).numel())
