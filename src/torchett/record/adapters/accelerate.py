"""Accelerate: a tracker that times steps by what the loop logs, and checkpoints by `save_state`.

    from torchett.record.adapters.accelerate import EttTracker
    accelerator = Accelerator(log_with=[EttTracker()]); accelerator.init_trackers("job")
    …
    accelerator.log({"loss": loss}, step=step)          the steps up to `step` are over

Steps lie between two calls of `log`; those before the first are not known, so under `ett run` the
hooks' steps are finer. Every rank records.
"""

from collections.abc import Callable
from typing import Any

from accelerate.tracking import GeneralTracker

from torchett.record import api
from torchett.record.adapters.phases import OpenPhases, harmless, open_record
from torchett.record.patches import install_on
from torchett.record.recorder import StepTimer


class EttTracker(GeneralTracker):  # type: ignore[misc]
    """Call `watch(accelerator)` to have its checkpoints timed as well."""

    name = "torchett"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self) -> None:
        super().__init__()
        self.phases = OpenPhases()
        self._last: int | None = None
        self._step: StepTimer | None = None  # from the last call of `log` on

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
        if last is not None and step > last and self._step is not None:
            self._step.over(int(step) - last)
            self._step = None
        if last is None or step != last:
            self._last = int(step)
            if self._step is not None:
                self._step.void()
            self._step = api.step(self._last + 1)
            self._step.__enter__()

    def watch(self, accelerator: Any) -> None:
        """Time `save_state` and `load_state`; a save holds the last step that was logged."""

        def make_saving(save: Callable[..., Any]) -> Callable[..., Any]:
            def saving(*args: Any, **kwargs: Any) -> Any:
                with api.blocked("checkpoint_blocked"):
                    done = save(*args, **kwargs)
                if self._last is not None:
                    api.checkpoint_durable(self._last)
                return done

            return saving

        def make_loading(load: Callable[..., Any]) -> Callable[..., Any]:
            def loading(*args: Any, **kwargs: Any) -> Any:
                with api.blocked("checkpoint_restore"):
                    return load(*args, **kwargs)

            return loading

        own = "accelerate.accelerator:Accelerator"
        install_on(accelerator, f"{own}.save_state", make_saving)
        install_on(accelerator, f"{own}.load_state", make_loading)
