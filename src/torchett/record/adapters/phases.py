"""Spans that begin in one callback and end in another."""

import functools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from torchett.record import api
from torchett.record.clock import now_ns
from torchett.record.recorder import StepTimer

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("torchett")


_IMPORTED_NS = now_ns()
_SHORT_NS = 100_000  # a wait shorter than the cost of recording it is not recorded


def open_record() -> None:
    """Open the record; what came after the adapter's import is set-up if nothing else says."""
    api.past_span("pre_train", _IMPORTED_NS, now_ns())
    api.init()


class OpenPhases:
    """The open spans by account, and at most one open step."""

    def __init__(self) -> None:
        self.off = False
        self._spans: dict[str, AbstractContextManager[None]] = {}
        self._step: StepTimer | None = None
        self._idle_ns: int | None = None
        self._stepped = False

    def begin(self, account: str) -> None:
        """Begin a span under `account`."""
        if account not in self._spans:
            span = api.blocked(account)
            span.__enter__()
            self._spans[account] = span

    def end(self, account: str) -> None:
        """End the span under `account`; no-op if it was not begun."""
        span = self._spans.pop(account, None)
        if span is not None:
            span.__exit__(None, None, None)

    def end_all(self) -> None:
        for account in list(self._spans):
            self.end(account)

    def step_begins(self, index: int) -> None:
        """A step runs or goes on from now on; what came since `idle` was waiting for data."""
        if self._idle_ns is not None:
            now = now_ns()
            if not self._stepped and self._step is None:
                api.past_span("get_first_batch_data", self._idle_ns, now)
            elif now - self._idle_ns > _SHORT_NS:
                api.past_span("data_wait", self._idle_ns, now)
            self._idle_ns = None
        if self._step is None:
            self._step = api.step(index)
            self._step.__enter__()

    def step_ends(self) -> None:
        """The step is over, and has done its work."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step, self._stepped = None, True

    def step_is_void(self) -> None:
        """Discard the step that was begun."""
        if self._step is not None:
            self._step.void()
        self._step = None

    def idle(self) -> None:
        """From now on until a step begins or goes on, the loop waits for data."""
        self._idle_ns = now_ns()

    def busy(self) -> None:
        """The loop no longer waits for data."""
        self._idle_ns = None


def harmless(hook: F) -> F:
    """A method of an adapter (which has `phases`) that never raises: it turns the adapter off."""

    @functools.wraps(hook)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.phases.off:
            return None
        try:
            return hook(self, *args, **kwargs)
        except Exception as error:
            self.phases.off = True
            log.warning(
                "torchett: %s is off: %s: %s", type(self).__name__, type(error).__name__, error
            )
            return None

    return called  # type: ignore[return-value]
