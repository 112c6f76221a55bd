"""Events of torch.compile: phases, metrics, recompile reasons, sizes that changed.

    torch._dynamo.utils           ChromiumEventLogger: begin and end of a phase, other events
                                  add_compilation_metrics_to_chromium: the end of a compile
    torch._dynamo.convert_frame   get_and_maybe_log_recompilation_reasons: every failed guard
    torch._dynamo.pgo             get_code_state: which sizes differed between compiles

These functions run only while torch compiles. The hooks are on modules and classes, not in lists of
callbacks, so `torch._dynamo.reset()` does not remove them. torch 2.11 and 2.13 have all of these
names. If a version lacks one, the `Listener` does not get those events.
"""

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from torchett.record.patches import Installed, calling, install

log = logging.getLogger("torchett")
_UTILS, _FRAMES = "torch._dynamo.utils", "torch._dynamo.convert_frame"
_listening: list[Installed | None] = []


class Listener(Protocol):
    """Receives the events, on the thread that compiles."""

    def began(self, phase: str, compile_id: str | None) -> None: ...

    def ended(self, phase: str) -> None: ...

    def happened(self, what: str) -> None: ...

    def measured(self, metrics: Any) -> None:
        """A compile has ended; `metrics` is torch's CompilationMetrics."""

    def failed_guards(self, reasons: list[str]) -> None: ...


def listen_to_phases(listener: Listener) -> None:
    """Pass all phases, events and metrics to `listener`; `torch._dynamo.utils` is imported."""

    def start(original: Callable[..., Any], logger: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(logger, *args, **kwargs)
        compile_id = kwargs.get("compile_id") or (args[4] if len(args) > 4 else None)
        _never_raise(began, _first(args, kwargs), compile_id)
        return result

    def began(phase: str, compile_id: Any) -> None:
        listener.began(phase, _text(compile_id or _current_compile_id()))

    def end(original: Callable[..., Any], logger: Any, *args: Any, **kwargs: Any) -> Any:
        _never_raise(listener.ended, _first(args, kwargs))
        return original(logger, *args, **kwargs)

    def instant(original: Callable[..., Any], logger: Any, *args: Any, **kwargs: Any) -> Any:
        _never_raise(listener.happened, _first(args, kwargs))
        return original(logger, *args, **kwargs)

    def measure(original: Callable[..., Any], metrics: Any, *args: Any, **kwargs: Any) -> Any:
        _never_raise(listener.measured, metrics)
        return original(metrics, *args, **kwargs)

    for name, around in (
        ("ChromiumEventLogger.log_event_start", start),
        ("ChromiumEventLogger.log_event_end", end),
        ("ChromiumEventLogger.log_instant_event", instant),
        ("add_compilation_metrics_to_chromium", measure),
    ):
        _listening.append(install(f"{_UTILS}:{name}", calling(around)))


def listen_to_reasons(listener: Listener) -> None:
    """Pass each graph's failed guard to `listener`; `torch._dynamo.convert_frame` is imported."""

    def reasons(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        _never_raise(listener.failed_guards, [str(reason) for reason in found])
        return found

    name = f"{_FRAMES}:get_and_maybe_log_recompilation_reasons"
    _listening.append(install(name, calling(reasons)))


def stop_listening() -> None:
    """Remove all hooks."""
    for patch in reversed(_listening):
        if patch is not None:
            patch.remove()
    _listening.clear()


def _never_raise(method: Callable[..., None], *values: Any) -> None:
    """Call the listener's method; its errors do not reach the compiler."""
    try:
        method(*values)
    except Exception as error:
        log.debug("torchett: a compile is not observed: %r", error)


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return str(args[0] if args else kwargs.get("event_name"))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _current_compile_id() -> Any:
    context = getattr(sys.modules.get("torch._guards"), "CompileContext", None)
    current = getattr(context, "current_compile_id", None)
    return None if current is None else current()


def changed_sizes(filename: str, line: int, name: str) -> dict[str, list[int] | None]:
    """The inputs of a function whose sizes differed so far: dimensions, or None for a number."""
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
    """Whether Python started the thread; it does not start those of torch's autograd engine."""
    return any(
        thread.ident == ident and not isinstance(thread, threading._DummyThread)
        for thread in threading.enumerate()
    )


def waiting_in_backward() -> set[int]:
    """The threads that wait for the autograd engine, for example in `loss.backward()`."""
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
