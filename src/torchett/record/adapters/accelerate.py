"""Accelerate: a tracker that times steps by what the loop logs, and checkpoints by `save_state`.

    from torchett.record.adapters.accelerate import EttTracker
    accelerator = Accelerator(log_with=[EttTracker()]); accelerator.init_trackers("job")
    …
    accelerator.log({"loss": loss}, step=step)          the steps up to `step` are over

Steps lie between two calls of `log`; those before the first are not known, so under `ett run` the
hooks' steps are finer. Every rank records.
"""

import functools
from typing import Any

from accelerate.tracking import GeneralTracker

from torchett.record import api
from torchett.record.adapters.phases import Phases, harmless, open_record


class EttTracker(GeneralTracker):  # type: ignore[misc]
    """Call `watch(accelerator)` to have its checkpoints timed as well."""

    name = "torchett"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self) -> None:
        super().__init__()
        self.phases = Phases()
        self._last: int | None = None

    @property
    def tracker(self) -> "EttTracker":
        return self

    @harmless
    def start(self) -> None:
        open_record()

    @harmless
    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        if step is None:
            return
        last = self._last
        if last is not None and step > last:
            # One timer times all steps: told again, it keeps its beginning and learns how many.
            api.step(last + 1, int(step) - last).__exit__(None, None, None)
        if last is None or step != last:
            self._last = int(step)
            api.step(self._last + 1).__enter__()

    def watch(self, accelerator: Any) -> None:
        """Time `save_state` and `load_state`; a save holds the last step that was logged."""
        save, load = accelerator.save_state, accelerator.load_state

        @functools.wraps(save)
        def saving(*args: Any, **kwargs: Any) -> Any:
            with api.blocked("checkpoint_blocked"):
                done = save(*args, **kwargs)
            if self._last is not None:
                api.checkpoint_durable(self._last)
            return done

        @functools.wraps(load)
        def loading(*args: Any, **kwargs: Any) -> Any:
            with api.blocked("checkpoint_restore"):
                return load(*args, **kwargs)

        accelerator.save_state, accelerator.load_state = saving, loading
