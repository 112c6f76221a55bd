"""Hugging Face Trainer: steps, waits, evaluation and checkpoints.

    from torchett.record.adapters.transformers import EttCallback
    Trainer(callbacks=[EttCallback()], …)

or, after `import torchett.record.adapters.transformers`, TrainingArguments(report_to="torchett").

    on_step_end ─ on_log ── evaluates ── on_evaluate ── saves ── on_save ═ data ═ on_step_begin
"""

import weakref
from typing import Any

import transformers.integrations.integration_utils  # noqa: F401  (to be patched)
from transformers import TrainerCallback

from torchett.record import api
from torchett.record.adapters.phases import OpenPhases, harmless, open_record
from torchett.record.clock import now_ns
from torchett.record.patches import install

_watching: dict[int, "weakref.ref[EttCallback]"] = {}  # whose arguments → by which callback


class EttCallback(TrainerCallback):  # type: ignore[misc]
    """Records what a Trainer does; `global_step` is the number of the step that runs."""

    def __init__(self) -> None:
        self.phases = OpenPhases()
        self._mark_ns = 0

    @harmless
    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        other = _watching.setdefault(id(args), weakref.ref(self))()
        if other is not self and other is not None:
            self.phases.off = True  # one by report_to, one given: the first records
            return
        _watching[id(args)] = weakref.ref(self)
        open_record()

    @harmless
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.phases.idle()

    @harmless
    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.phases.step_begins(state.global_step)

    @harmless
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.phases.step_ends()
        self._mark()

    @harmless
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in (logs or {}):  # what an evaluation logs is part of it
            self._mark()

    @harmless
    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        api.past_span("evaluation", self._mark_ns or now_ns(), now_ns())
        self._mark()

    @harmless
    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        api.past_span("checkpoint_blocked", self._mark_ns or now_ns(), now_ns())
        if state.global_step > 0:
            api.checkpoint_durable(state.global_step - 1)
        self._mark()

    @harmless
    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.phases.busy()
        self._mark_ns = now_ns()

    @harmless
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.phases.busy()
        self._mark_ns = 0

    def _mark(self) -> None:
        self._mark_ns = now_ns()
        self.phases.idle()


install(
    "transformers.integrations.integration_utils:INTEGRATION_TO_CALLBACK",
    lambda known: {"torchett": EttCallback, **known},
)
