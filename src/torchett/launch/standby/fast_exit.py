"""A rank exits without tearing its interpreter down.

    python       script ─ threads joined ─ exit handlers ─ streams ─ teardown ✗ SIGABRT, at times
    fast exit    script ─ threads joined ─ exit handlers ─ streams, open files ─ exit
    gloo         ──────── its thread frees the last all-reduce, and the Python objects it holds

A teardown takes seconds with a GPU, and aborts a rank whose gloo thread runs Python in it (torch's
issue 190489). What it would do that others can see is done here: threads joined, exit handlers run,
files written. C's exit handlers are left out, which some profilers need: ETT_FAST_EXIT=0.
"""

import _io
import atexit
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from torchett.record.patches import install
from torchett.record.plugins import when_imported
from torchett.record.process.joined_threads import wait_for_none

log = logging.getLogger("torchett")

_C10D = "torch.distributed.distributed_c10d"
_kept: deque[Any] = deque(maxlen=16)  # bounded: a script may make groups without end


def wanted() -> bool:
    return os.environ.get("ETT_FAST_EXIT") != "0"


def leave(code: int, ended_well: Callable[[], None], made_after: object) -> NoReturn:
    """Exit with the script's status, by a signal if it is negative.

    Any error on this way leaves the rest, and the same status, to the interpreter's own exit.
    """
    if wanted():
        try:
            code = _finish(code, made_after)
            if code == 0:
                ended_well()
        except BaseException as error:
            log.warning("torchett: a rank exits by a teardown: %r", error)
        else:
            if code >= 0:
                os._exit(code)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _finish(code: int, made_after: object) -> int:
    """Do the visible part of the interpreter's exit (flush, atexit); returns the exit status."""
    wait_for_none()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except KeyboardInterrupt:
        pass  # as the interpreter: it reports that and goes on
    _end_compile_workers()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is None or getattr(stream, "closed", False):
            continue
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            code = code or 120  # as the interpreter does when a stream cannot be flushed
    _write_files(made_after)
    return code


def _write_files(made_after: object) -> None:
    """Flush files that the script has not closed: a teardown would close them.

    They are among the objects that gc tracks. If `made_after` is not, the script has frozen it, and
    perhaps files as well.
    """
    found = gc.get_objects()
    if not any(one is made_after for one in found):
        gc.unfreeze()
        found = gc.get_objects()
    # By type(): isinstance() would call the __class__ of lazy proxies.
    files = [one for one in found if issubclass(type(one), _io._IOBase)]
    layers = [file for file in files if type(file).__module__ != "_io"]  # gzip's write an end
    for act, among in (("flush", files), ("close", layers), ("flush", files)):
        for file in among:
            try:
                getattr(file, act)()
            except Exception:
                pass  # it is closed or cannot be written: the interpreter ignores that as well
    ctypes.CDLL(None).fflush(None)  # what C's streams hold


def _end_compile_workers() -> None:
    """Kill inductor's compile workers: asked to exit, they take seconds."""
    module = sys.modules.get("torch._inductor.async_compile")
    for pool in tuple(getattr(module, "_pool_set", ())):
        process = getattr(pool, "process", None)
        if process is not None:
            pool.running = False  # its shutdown has nothing left to do
            process.kill()


def keep_process_groups() -> None:
    """Keep process groups that the script destroys until this process exits.

        main thread    DDP goes: ~Reducer ─ ~ProcessGroupGloo ─ joins gloo's thread, with the GIL
        gloo's thread  ~AsyncAllreduceWork ─ waits for the GIL                            deadlock

    While a reference is left, DDP's end does not run the group's destructor.
    """
    if wanted():
        when_imported(_C10D, _keep_destroyed)


def _keep_destroyed(c10d: Any) -> None:
    def make(destroy: Callable[..., None]) -> Callable[..., None]:
        def destroy_process_group(group: Any = None) -> None:
            every = group is None or group is c10d.GroupMember.WORLD
            _kept.extend(list(c10d._world.pg_map) if every else [group])
            destroy(group)

        return destroy_process_group

    install(f"{_C10D}:destroy_process_group", make, also=("torch.distributed",))
