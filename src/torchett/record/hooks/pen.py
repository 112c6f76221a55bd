"""The pen: writes what the hooks saw into the record, unless the script says it itself."""

from collections.abc import Callable
from typing import Any

from torchett.record import api
from torchett.record.recorder import Recorder, Silent


class Pen:
    """Follows one recorder. What a script records by its own calls is not recorded twice:

    steps      not by the hooks once the script has called `ett.step` or `ett.steps`
    accounts   not by the hooks once the script has named them in `ett.stage` or `ett.blocked`
    """

    def __init__(self) -> None:
        self.recorder: Recorder | Silent | None = None
        self.said: set[str] = set()
        self.says_steps = False

    def follow(self, recorder: Recorder | Silent) -> None:
        """Write to this recorder from now on, and notice what the script tells it."""
        self.recorder = recorder
        if isinstance(recorder, Recorder):
            self._listen(recorder)
            if not self.says_steps:
                vars(self)["step"] = recorder.past_step  # without a detour

    def _listen(self, recorder: Recorder) -> None:
        step, steps, span = recorder.step, recorder.steps, recorder.span

        def first(plain: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                self.says_steps = True
                vars(self).pop("step", None)
                self.said |= {"data_wait", "get_first_batch_data"} if plain == steps else set()
                vars(recorder).update(step=step, steps=steps)
                return plain(*args, **kwargs)

            return called

        def named(account: str, background: bool = False) -> Any:
            self.said.add(account)
            return span(account, background)

        vars(recorder).update(step=first(step), steps=first(steps), span=named)

    def span(self, account: str, t0_ns: int, t1_ns: int) -> None:
        """Record a span that is over; before the record is open it waits for it."""
        if account not in self.said:
            api.past_span(account, t0_ns, t1_ns)

    def step(self, waited_ns: int, begin_ns: int, end_ns: int, index: int) -> None:
        """Record a step that is over, after a wait for data from `waited_ns` on."""
        # Nobody records, or the script itself does: see `follow`.

    def durable(self, step: int) -> None:
        if self.recorder is not None and step >= 0 and not self.says_steps:
            self.recorder.checkpoint_durable(step)
