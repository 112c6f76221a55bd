"""What torch.compile says while it compiles: phases, metrics, reasons, sizes that changed.

    torch._dynamo.utils           ChromiumEventLogger: a phase begins, ends, something happened
                                  add_compilation_metrics_to_chromium: a compile is over
    torch._dynamo.convert_frame   get_and_maybe_log_recompilation_reasons: every failed guard
    torch._dynamo.pgo             get_code_state: which sizes differed between compiles

All of it runs while torch compiles and at no other time. It belongs to modules and classes, not
to lists of callbacks, so `torch._dynamo.reset()` does not end it. torch 2.11 and 2.13 have all of
it; what a version lacks is left out, and a `Listener` hears less.
"""

import logging
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from torchett.compile.adapter.wrapping import unwrap, wrap

log = logging.getLogger("torchett")


class Listener(Protocol):
    """Who listens. Called on the thread that compiles."""

    def began(self, phase: str, compile_id: str | None) -> None: ...

    def ended(self, phase: str) -> None: ...

    def happened(self, what: str) -> None: ...

    def measured(self, metrics: Any) -> None:
        """A compile is over; `metrics` is torch's CompilationMetrics."""

    def failed_guards(self, reasons: list[str]) -> None: ...


def listen_to_phases(utils: ModuleType, heard: Listener) -> None:
    """Tell `heard` of every phase, event and metric. For `torch._dynamo.utils`."""
    events = utils.ChromiumEventLogger

    def start(original: Callable[..., Any], logger: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(logger, *args, **kwargs)
        compile_id = kwargs.get("compile_id") or (args[4] if len(args) > 4 else None)
        _tell(heard.began, _first(args, kwargs), _text(compile_id or _current_compile_id()))
        return result

    def end(original: Callable[..., Any], logger: Any, *args: Any, **kwargs: Any) -> Any:
        _tell(heard.ended, _first(args, kwargs))
        return original(logger, *args, **kwargs)

    def instant(original: Callable[..., Any], logger: Any, *args: Any, **kwargs: Any) -> Any:
        _tell(heard.happened, _first(args, kwargs))
        return original(logger, *args, **kwargs)

    def measure(original: Callable[..., Any], metrics: Any, *args: Any, **kwargs: Any) -> Any:
        _tell(heard.measured, metrics)
        return original(metrics, *args, **kwargs)

    wrap(events, "log_event_start", start)
    wrap(events, "log_event_end", end)
    wrap(events, "log_instant_event", instant)
    wrap(utils, "add_compilation_metrics_to_chromium", measure)


def listen_to_reasons(convert_frame: ModuleType, heard: Listener) -> None:
    """Tell `heard` which guard of each earlier graph failed. For `torch._dynamo.convert_frame`."""

    def reasons(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        _tell(heard.failed_guards, [str(reason) for reason in found])
        return found

    wrap(convert_frame, "get_and_maybe_log_recompilation_reasons", reasons)


def stop_listening() -> None:
    """Put everything back as torch has it."""
    utils, frame = (sys.modules.get(f"torch._dynamo.{m}") for m in ("utils", "convert_frame"))
    events = getattr(utils, "ChromiumEventLogger", None)
    for name in ("log_event_start", "log_event_end", "log_instant_event"):
        unwrap(events, name)
    unwrap(utils, "add_compilation_metrics_to_chromium")
    unwrap(frame, "get_and_maybe_log_recompilation_reasons")


def _tell(listener: Callable[..., None], *words: Any) -> None:
    """Say it; trouble of the listener's own does not reach the compiler."""
    try:
        listener(*words)
    except Exception as error:
        log.debug("torchett: a compile is not observed: %r", error)


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return str(args[0] if args else kwargs.get("event_name"))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _current_compile_id() -> Any:
    guards = sys.modules.get("torch._guards")
    return None if guards is None else guards.CompileContext.current_compile_id()


def changed_sizes(filename: str, line: int, name: str) -> dict[str, list[int] | None]:
    """The sources of a function whose sizes differed so far: dimensions, or None for a number."""
    pgo = sys.modules.get("torch._dynamo.pgo")
    states = getattr(pgo, "_CODE_STATE", None)
    if pgo is None or not states:
        return {}
    dynamic = pgo.auto_dynamic
    found: dict[str, list[int] | None] = {}
    for code, state in list(states.items()):
        if (code.filename, code.firstlineno, code.name) != (filename, line, name):
            continue
        for source, seen in state.automatic_dynamic.items():
            if isinstance(seen.size, tuple):
                dims = [dim for dim, size in enumerate(seen.size) if size is dynamic]
                if dims:
                    found[source] = dims
            elif seen.scalar is dynamic:
                found[source] = None
    return found


def is_python_thread(ident: int) -> bool:
    """Whether a thread was started by Python: those of torch's autograd engine were not."""
    return any(
        thread.ident == ident and not isinstance(thread, threading._DummyThread)
        for thread in threading.enumerate()
    )


def waiting_in_backward() -> set[int]:
    """The threads that wait for the autograd engine: in `loss.backward()` and its like."""
    waiting = set()
    for ident, frame in sys._current_frames().items():
        here: Any = frame
        for _ in range(12):
            if here is None:
                break
            if here.f_code.co_name == "_engine_run_backward":
                waiting.add(ident)
                break
            here = here.f_back
    return waiting
