"""Threads that run beside training and end before the interpreter's teardown.

    main thread     the script │ exit: ask, and wait a little │ the interpreter's teardown
    beside it  ────── in torch's C++ ──────────┤ ended

A thread that comes back from torch's C++ into an interpreter that is being torn down aborts the
process: it would end by SIGABRT instead of with the script's own exit status. So a thread that
calls torch and may be under way at the end is begun here.

torch.compile keeps the states of the process's random generators while it compiles and sets them
back afterwards. On a thread beside the script that undoes what the script has set meanwhile: so a
state that matters is set by `set_generators`.
"""

import atexit
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_patience_s = 2.0  # for all of them together
_begun: dict[threading.Thread, Callable[[], None] | None] = {}


def begin_beside(
    work: Callable[..., Any], *args: Any, name: str, wake: Callable[[], None] | None = None
) -> threading.Thread:
    """Begin `work` on a daemon thread.

    At exit `wake` is called, so that it does not sleep, and SystemExit is raised in it.
    """
    thread = threading.Thread(target=work, args=args, name=name, daemon=True)
    for over in [known for known in list(_begun) if not known.is_alive()]:
        _begun.pop(over, None)
    atexit.unregister(_end_all)  # the latest registered is called first
    atexit.register(_end_all)
    thread.start()
    _begun[thread] = wake
    return thread


_lock = threading.Lock()
_compiling = 0
_set_meanwhile: list[Callable[[], None]] = []


@contextmanager
def compiles_beside() -> Iterator[None]:
    """The body compiles on a thread; generators that were set meanwhile are set again after it."""
    global _compiling
    with _lock:
        _compiling += 1
    try:
        yield
    finally:
        with _lock:
            _compiling -= 1
            again = [] if _compiling else _set_meanwhile[:]
            del _set_meanwhile[: len(again)]
        for put in again:
            put()


def set_generators(put: Callable[[], None]) -> None:
    """Call `put()`, which sets random generators; once more if a thread compiles just now."""
    put()
    with _lock:
        if _compiling:
            _set_meanwhile.append(put)


def wait_for_none() -> None:
    """This process exits without a teardown: signal the threads to end, but do not wait."""
    global _patience_s
    _patience_s = 0.0


def _end_all() -> None:
    under_way = [thread for thread in list(_begun) if thread.is_alive()]
    for thread in under_way:
        if (wake := _begun[thread]) is not None:
            wake()
        ident = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))
    deadline = time.monotonic() + _patience_s
    for thread in under_way:
        thread.join(max(0.0, deadline - time.monotonic()))
