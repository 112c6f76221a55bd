"""The span writer: records what the hooks saw, unless the script records it itself."""

from torchett.record import api
from torchett.record.recorder import Recorder, Silent


class SpanWriter:
    """Writes to one recorder; what the script records by its own calls is not recorded twice."""

    def __init__(self) -> None:
        self.recorder: Recorder | Silent | None = None

    def follow(self, recorder: Recorder | Silent) -> None:
        """Write to this recorder from now on."""
        self.recorder = recorder

    @property
    def says_steps(self) -> bool:
        """Whether the script records its steps itself."""
        return self.recorder is not None and self.recorder.script_calls.steps

    def says(self, account: str, until_ns: int | None = None) -> bool:
        """Whether the script itself records this time: from now on, or up to `until_ns`."""
        return self.recorder is not None and self.recorder.script_calls.covers(account, until_ns)

    def span(self, account: str, t0_ns: int, t1_ns: int) -> None:
        """Record a span that is over; until the record is open, it is kept."""
        if self.says(account, t1_ns):
            return
        if self.recorder is not None:
            t0_ns = self.recorder.script_calls.clipped(t0_ns)
        if t0_ns < t1_ns:
            api.past_span(account, t0_ns, t1_ns)

    def step(self, waited_ns: int, begin_ns: int, end_ns: int, index: int) -> None:
        """Record a step that is over, after a wait for data from `waited_ns` on."""
        recorder = self.recorder
        if recorder is None:
            return
        if not recorder.script_calls.steps:
            recorder.past_step(waited_ns, begin_ns, end_ns, index)
        elif waited_ns < begin_ns:
            self.span("data_wait", waited_ns, begin_ns)

    def durable(self, step: int) -> None:
        """Record that the checkpoint of this step is safe."""
        recorder = self.recorder
        if recorder is None or step < 0:
            return
        calls = recorder.script_calls
        if not calls.durable and (calls.loops or not calls.steps):
            recorder.checkpoint_durable(step)

    def saved_index(self, seen: int) -> int:
        """The step that a checkpoint made now holds: as the script numbers them, else as `seen`."""
        recorder = self.recorder
        if recorder is None or not recorder.script_calls.steps:
            return seen
        return recorder.saved_index
