"""nvidia-resiliency-ext's inprocess.Wrapper: each restart of the wrapped function is an attempt.

    process   imports │ train() ──── ✗ │ abort, barrier │ train() ─────────────── ends
    record    attempt 0 ────────────── ┤  restart_gap   ├ attempt 1 ─────────────

Installed by itself, also by an `ett.init()` inside the function. A rank that raised has the error
on record; the others were interrupted by it.
"""

import logging
from collections.abc import Callable
from typing import Any

from torchett.record import api
from torchett.record.clock import now_ns
from torchett.record.patches import calling, install

log = logging.getLogger("torchett")
_PACKAGE = "nvidia_resiliency_ext.inprocess"
_left_ns = 0  # when the function ended by an exception; 0: it runs
_restart: tuple[int, BaseException | None] | None = (
    None  # all ranks have synchronised; not yet called again
)


def install_wrapper() -> bool:
    """Record every restart of a wrapped function; False where that cannot be done."""
    hooks = {
        "monitor_process:MonitorProcess.record_interrupted": _left,
        "monitor_thread:MonitorThread.shutdown": _left,
        "state:State.advance": _advance,
        "monitor_thread:MonitorThread.__init__": _begins,
    }
    done = [install(f"{_PACKAGE}.{name}", calling(hook)) for name, hook in hooks.items()]
    return None not in done


def _left(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The first of these calls comes as soon as the function has ended."""
    global _left_ns
    _left_ns = _left_ns or now_ns()
    return plain(*args, **kwargs)


def _advance(plain: Callable[..., Any], state: Any) -> Any:
    """All ranks have synchronised. A process that is now a spare begins no attempt."""
    global _left_ns, _restart
    error, left_ns, _left_ns = state.fn_exception, _left_ns or now_ns(), 0
    _restart = (left_ns, error) if state.active_rank is not None else None
    return plain(state)


def _begins(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The thread that watches the function is made right before the function is called."""
    global _restart
    restart, _restart = _restart, None
    done = plain(*args, **kwargs)
    if restart is not None:
        try:
            api.new_life(*restart)
        except Exception as problem:
            log.warning("torchett: a restart is not recorded: %r", problem)
    return done
