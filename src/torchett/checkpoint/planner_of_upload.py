"""The planner of an upload: the plan was made in the trainer, the data lies in the arena."""

import io
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItemType

from torchett.checkpoint.errors import CheckpointError


class UploadPlanner(DefaultSavePlanner):  # type: ignore[misc]
    """DCP's planner, with a local plan given and data looked up by its items."""

    def __init__(
        self, plan: Any, tensors: list[Any], blobs: list[bytes], poison: str | None
    ) -> None:
        super().__init__()
        self._given, self._poison = plan, poison
        items = [] if plan is None else plan.items
        kinds = (
            [i.index for i in items if i.type != WriteItemType.BYTE_IO],
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
        return self.plan

    def resolve_data(self, write_item: Any) -> Any:
        data = self._data[write_item.index]
        if isinstance(data, bytes):
            return io.BytesIO(data)
        return data() if callable(data) else data
