"""DeepSpeed: the engine's steps and checkpoints.

    from torchett.record.adapters.deepspeed import watched
    engine, optimizer, loader, _ = deepspeed.initialize(…)
    engine = watched(engine)

A step runs from the first forward pass after the last step to the `step()` that ends the
accumulation of gradients (or is one `train_batch` of a pipeline). Its number is `global_steps`.
"""

from collections.abc import Callable
from typing import Any

from torchett.record import api
from torchett.record.adapters.phases import OpenPhases, harmless, open_record
from torchett.record.patches import install_on


class EngineHooks:
    """Records the steps and checkpoints of one engine."""

    def __init__(self, engine: Any) -> None:
        self.phases = OpenPhases()
        self._engine = engine

    @harmless
    def begins(self) -> None:
        self.phases.step_begins(int(self._engine.global_steps))

    @harmless
    def may_have_ended(self, before: int) -> None:
        if self._engine.global_steps > before:
            self.phases.step_ends()
            self.phases.idle()

    @harmless
    def saved(self) -> None:
        if self._engine.global_steps > 0:
            api.checkpoint_durable(int(self._engine.global_steps) - 1)
        self.phases.idle()


def watched(engine: Any) -> Any:
    """The same engine, watched."""
    open_record()
    watch = EngineHooks(engine)

    def around(name: str, before: Callable[[], None], account: str | None = None) -> None:
        def make(plain: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                steps = engine.global_steps
                before()
                if account is None:
                    result = plain(*args, **kwargs)
                else:
                    with api.blocked(account):
                        result = plain(*args, **kwargs)
                if name == "save_checkpoint":
                    watch.saved()
                elif account is None:
                    watch.may_have_ended(steps)
                return result

            return called

        install_on(engine, f"deepspeed.runtime.engine:DeepSpeedEngine.{name}", make)

    # A module looks up `forward` by name, and an attribute of the instance is found first.
    around("forward", lambda: watch.begins() if engine.training else None)
    around("step", lambda: None)
    around("train_batch", watch.begins)
    around("save_checkpoint", watch.phases.busy, "checkpoint_blocked")
    around("load_checkpoint", watch.phases.busy, "checkpoint_restore")
    return engine
