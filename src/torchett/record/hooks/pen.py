"""The pen: writes what the hooks saw into the record, unless the script says it itself."""

from collections.abc import Callable
from threading import get_ident
from typing import Any

from torchett.record import api
from torchett.record.clock import now_ns
from torchett.record.recorder import Recorder, Silent


class Pen:
    """Follows one recorder. What a script records by its own calls is not recorded twice:

    steps      not by the hooks once the script has called `ett.step` or `ett.steps`
    accounts   not by the hooks once the script has named them in `ett.stage` or `ett.blocked`,
               nor any of the time that the same thread has been inside such a span
    """

    def __init__(
        self,
        before_steps: Callable[[], None] = lambda: None,
        before_spans: Callable[[], None] = lambda: None,
    ) -> None:
        self._before_steps = before_steps  # called when the script begins to tell steps itself,
        self._before_spans = before_spans  # and when it tells a span
        self.recorder: Recorder | Silent | None = None
        self.said: set[str] = set()
        self.says_steps = False
        self._inside: dict[int, list[int]] = {}  # thread → when the spans it is in began
        self._left: dict[int, tuple[int, int]] = {}  # thread → the last that it was in

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
                self._before_steps()
                self.says_steps = True
                vars(self).pop("step", None)
                self.said |= {"data_wait", "get_first_batch_data"} if plain == steps else set()
                vars(recorder).update(step=step, steps=steps)
                return plain(*args, **kwargs)

            return called

        def named(account: str, background: bool = False) -> Any:
            self._before_spans()
            self.said.add(account)
            timer = span(account, background)
            return timer if background else _Counted(timer, self._inside, self._left)

        vars(recorder).update(step=first(step), steps=first(steps), span=named)

    def span(self, account: str, t0_ns: int, t1_ns: int) -> None:
        """Record a span that is over; before the record is open it waits for it."""
        if self.says(account, t1_ns):
            return
        began, ended = self._left.get(get_ident(), (0, 0))
        if began <= t0_ns < ended:  # told only now
            t0_ns = ended
        if t0_ns < t1_ns:
            api.past_span(account, t0_ns, t1_ns)

    def says(self, account: str, until_ns: int | None = None) -> bool:
        """Whether the script itself says where this time goes: from now on, or up to `until_ns`."""
        inside = self._inside.get(get_ident())
        return account in self.said or bool(inside and (until_ns is None or until_ns > inside[0]))

    def step(self, waited_ns: int, begin_ns: int, end_ns: int, index: int, count: int = 1) -> None:
        """Record steps that are over, after waits for data from `waited_ns` on."""
        # Nobody records, or the script itself does: see `follow`.

    def durable(self, step: int) -> None:
        if self.recorder is not None and step >= 0 and not self.says_steps:
            self.recorder.checkpoint_durable(step)


class _Counted:
    """A span of the script's own: while a thread is inside, hooks say nothing of it."""

    __slots__ = ("_inside", "_left", "_me", "_timer")

    def __init__(
        self, timer: Any, inside: dict[int, list[int]], left: dict[int, tuple[int, int]]
    ) -> None:
        self._timer, self._inside, self._left = timer, inside, left

    def __enter__(self) -> None:
        self._me = get_ident()
        self._inside.setdefault(self._me, []).append(now_ns())
        self._timer.__enter__()

    def __exit__(self, *error: object) -> None:
        self._timer.__exit__(*error)
        began = self._inside.pop(self._me, [])
        if len(began) > 1:
            self._inside[self._me] = began[:-1]
        elif began:
            self._left[self._me] = began[0], now_ns()
