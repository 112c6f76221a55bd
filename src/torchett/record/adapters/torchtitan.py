"""torchtitan: its structured logger's records, taken as they are made.

    TITAN_STRUCT_LOGGER_HANDLERS=torchett.record.adapters.torchtitan.register torchrun … train.py

Only the listed handlers run: name torchtitan's own beside it to keep its JSONL files. What was
logged before can be imported with `ett import … --format torchtitan`.
"""

import logging
from typing import Any

from torchett.record import api
from torchett.record.adapters.phases import OpenPhases, harmless, open_record

_SPANS = {
    "torch_distributed_init": "process_group_init",
    "model_parallelism_init": "train_module_creation",
    "checkpoint_load": "checkpoint_restore",
    "eval": "evaluation",
    "torch_distributed_teardown": "teardown",
}


class EttHandler(logging.Handler):
    """Turns `NAME_start` and `NAME_end` into spans and steps."""

    def __init__(self) -> None:
        super().__init__()
        self.phases = OpenPhases()
        self._fetched = self._optimized = self._raised = False

    @harmless
    def emit(self, record: logging.LogRecord) -> None:
        name, _, edge = str(getattr(record, "log_type_name", "")).rpartition("_")
        step = getattr(record, "step", None)
        if name == "step":
            self._take_step(edge, step)
        elif name == "optim" and edge == "end":
            self._optimized = True
        elif edge in ("start", "end"):
            account = _SPANS.get(name)
            if name == "fetching_batch":
                account = "data_wait" if self._fetched else "get_first_batch_data"
                self._fetched = self._fetched or edge == "end"
            elif name == "checkpoint_save":
                account = "checkpoint_blocked"
            if account is not None:
                (self.phases.begin if edge == "start" else self.phases.end)(account)
            if name == "checkpoint_save" and edge == "end" and step is not None and _saved():
                api.checkpoint_durable(int(step))

    def _take_step(self, edge: str, step: Any) -> None:
        if edge == "start" and step is not None:
            self._optimized = self._raised = False
            self.phases.step_begins(int(step))
        elif edge == "error":
            self._raised = True
        elif edge == "end":
            if self._optimized and not self._raised:
                self.phases.step_ends()
            else:  # out of data, or raised
                self.phases.step_is_void()


def _saved() -> bool:
    """Whether the save that just returned wrote anything: most steps are not due for one."""
    from torchtitan.observability.structured_logger.step_state import get_step_tags

    return "checkpoint_save" in (get_step_tags() or ())


def register(*, structured_logger: logging.Logger, rank: int, **_: Any) -> None:
    """The handler factory."""
    open_record()
    structured_logger.addHandler(EttHandler())
