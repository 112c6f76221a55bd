"""DCP's reader of a snapshot in memory: one rank's own part, where it was copied to.

Its metadata is made of this rank's plan alone, so it serves a rank that is sharded as the one that
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
        planned, blobs, self.per_rank = pickle.loads(head)
        plan, slots = pickle.loads(planned)
        tensors = [i.index for i in plan.items if i.type != WriteItemType.BYTE_IO]
        values = [i.index for i in plan.items if i.type == WriteItemType.BYTE_IO]
        self._slots = dict(zip(tensors, slots, strict=True))
        self._blobs = dict(zip(values, blobs, strict=True))
        self._memory = memory
        _, metadata = create_default_global_save_plan([plan])
        self._metadata = replace(metadata, planner_data=plan.planner_data)

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
            slot = self._slots[item.storage_index]
            view = narrow(slot.view(self._memory), item.storage_offsets, item.lengths)
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


def _numbers_here(value: Any) -> int | None:
    """How many numbers of a tensor lie on this rank; None of what is none."""
    if hasattr(value, "local_shards"):
        return sum(int(shard.tensor.numel()) for shard in value.local_shards())
    if not isinstance(value, torch.Tensor):
        return None
    return int(getattr(value, "_local_tensor", value).numel())
