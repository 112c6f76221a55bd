"""The communication audit of a rank: every process group and Python collective of its start-up.

    rank 0   ├ all_gather_object ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┤ done     arrived first, waits for rank 1
    rank 1                       ├ ───────────────┤ done     arrived last: all of it is work
             arrival             arrival

Each rank records its own arrivals and ends. Waiting is split from work later, with the records of
all ranks (see `communication`). Collectives nested in another one belong to the outermost: an
all_gather_object is one call, and its bytes are those of the tensors that it sends.

The audit ends and removes its hooks when the first optimizer step begins. Collectives of C++ until
then come from torch's flight recorder. At exit it records which groups were ever used. For a call
with async_op, or one that a GPU stream runs later, only the time until its return is known.
"""

import atexit
import functools
import logging
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import Any

from torchett.levers.communication.collectives import (
    C10D,
    GROUP_MAKERS,
    POINT_TO_POINT,
    Function,
    backend_of,
    bytes_of,
    flight_recorder,
    given,
    group_name,
    group_ranks,
    place_of,
    swapped,
    uses,
)
from torchett.record import api
from torchett.record.clock import now_ns
from torchett.record.patches import install
from torchett.record.plugins import when_imported

log = logging.getLogger("torchett")

KIND = "collectives"
_MOST_CALLS = 4096  # stored one by one; further ones are counted by site
_MOST_SITES = 400
_MOST_GROUPS = 400
_FLUSH_CALLS, _FLUSH_NS = 64, 2_000_000_000
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})


def install_plugin() -> None:
    """Audit this process from its import of torch.distributed on."""
    audit = Audit()
    when_imported("torch.distributed.distributed_c10d", audit.start)
    when_imported("torch.optim.optimizer", audit.stop_at_first_step)


class _Thread(threading.local):
    """The depth of a thread's nested collectives, and the bytes that nested ones sent."""

    depth = 0
    nested_bytes = 0


class Audit:
    """The audit of this process. Nothing here raises into a collective."""

    def __init__(self) -> None:
        self._restore: Callable[[], None] | None = None
        self._thread = _Thread()
        self._lock = threading.Lock()
        self._opened = False
        self._torch = ""
        self._sites: dict[tuple[str, str, str], int] = {}
        self._groups: dict[str, Any] = {}  # name → group, to read its number of uses
        self._made = 0
        self._calls = 0
        self._flushed_ns = 0
        self._new_sites: list[list[Any]] = []
        self._new_groups: list[dict[str, Any]] = []
        self._new_calls: list[list[Any]] = []
        self._more: dict[int, list[int]] = {}  # site → calls and ns that are not stored one by one

    def start(self, _: ModuleType) -> None:
        """Record every call from now on."""
        self._torch = os.path.dirname(sys.modules["torch"].__file__ or "torch") + os.sep
        self._restore = swapped(self._around, "audit")
        self._watch_destroy()

    def stop_at_first_step(self, optimizer: ModuleType) -> None:
        """Stop when an optimizer begins its first step."""

        def first(*_: object) -> None:
            if self._restore is not None:
                self.stop()

        # Never removed: a hook must not change the table of hooks during a call of them.
        optimizer.register_optimizer_step_pre_hook(first)

    def stop(self) -> None:
        """End the audit: remove the hooks and write the records."""
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()
            self._guarded(self._write, final=False)
            self._guarded(self._write_native)

    # Around a call ---------------------------------------------------------------------------

    def _around(self, name: str, function: Function) -> Function:
        place = place_of(function, "group")
        makes_group = name in GROUP_MAKERS
        thread, torch = self._thread, sys.modules["torch"]

        @functools.wraps(function)
        def audited(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # traced by torch.compile: record nothing
                return function(*args, **kwargs)
            if thread.depth:
                if not makes_group:
                    thread.nested_bytes += bytes_of(args, kwargs)
                return function(*args, **kwargs)
            thread.depth, thread.nested_bytes = 1, 0
            span = self._open_span(name, args, kwargs) if makes_group else None
            t0 = now_ns()
            try:
                result = function(*args, **kwargs)
            finally:
                t1 = now_ns()
                thread.depth = 0
                if span is not None:
                    span.__exit__(None, None, None)
            try:
                if makes_group:
                    self._made_group(name, function, args, kwargs, result, t0, t1)
                else:
                    self._took(
                        name, given("group", place, args, kwargs), args, kwargs, result, t0, t1
                    )
            except Exception as error:
                self._give_up(error)
            return result

        return audited

    def _open_span(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A span for making a group; the first one opens the record."""
        try:
            if name == "init_process_group" and "RANK" not in os.environ:
                rank, ranks = kwargs.get("rank", -1), kwargs.get("world_size", -1)
                self._open(*((rank, ranks) if min(rank, ranks) >= 0 else (None, None)))
            else:
                self._open()
            main = threading.current_thread() is threading.main_thread()
            span = api.stage("process_group_init", background=not main)
            span.__enter__()
            return span
        except Exception as error:
            self._give_up(error)
            return None

    def _open(self, rank: int | None = None, ranks: int | None = None) -> None:
        if not self._opened:
            self._opened = True
            api.init(rank=rank, ranks=ranks)
            atexit.register(self._leave, os.getpid())  # registered last, so it runs before others

    def _took(
        self,
        name: str,
        group: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        t0: int,
        t1: int,
    ) -> None:
        shared_name = group_name(group)
        if shared_name is None:
            return  # not a member: torch has returned at once
        size = self._thread.nested_bytes or bytes_of(args, kwargs)
        channel = None if name in POINT_TO_POINT else f"group {shared_name}"
        self._keep(name, channel, t0, t1, size, result is not None and hasattr(result, "wait"))

    def _made_group(
        self,
        name: str,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        t0: int,
        t1: int,
    ) -> None:
        """Store a call that made a group, and the group itself if this rank is a member.

        All ranks of the job make groups in the same order. With `use_local_synchronization` only
        the members do.
        """
        if name == "init_process_group":
            channel, group = "init", None
        else:
            group = result
            ranks = given("ranks", place_of(function, "ranks"), args, kwargs)
            local = bool(kwargs.get("use_local_synchronization"))
            channel = f"new {as_ranges(ranks or ())}" if local else "new"
        site = self._keep(name, channel, t0, t1, 0, False)
        shared_name = group_name(group)
        if shared_name is None or self._made >= _MOST_GROUPS:
            return
        if group is None:
            import torch.distributed as dist

            group = dist.group.WORLD
        with self._lock:
            self._made += 1
            self._groups[shared_name] = group
            self._new_groups.append(
                {
                    "name": shared_name,
                    "ranks": as_ranges(group_ranks(group)),
                    "backend": backend_of(group),
                    "site": site,
                    "took_ns": t1 - t0,
                }
            )

    def _keep(
        self, name: str, channel: str | None, t0: int, t1: int, size: int, asynchronous: bool
    ) -> int:
        self._open()
        site = self._site(name, sys._getframe(3))
        with self._lock:
            self._calls += 1
            if self._calls <= _MOST_CALLS:
                self._new_calls.append([site, channel, t0, t1 - t0, size, int(asynchronous)])
            else:
                counted = self._more.setdefault(site, [0, 0])
                counted[0] += 1
                counted[1] += t1 - t0
            due = len(self._new_calls) >= _FLUSH_CALLS or t1 - self._flushed_ns > _FLUSH_NS
        if due:
            self._write(final=False)
        return site

    def _site(self, name: str, frame: FrameType | None) -> int:
        """The number of the call site: the caller of torch, and the line in the user's own code."""
        while frame is not None and frame.f_code.co_filename.startswith(self._torch):
            frame = frame.f_back
        where = _place(frame)
        while frame is not None and _is_library(frame.f_code.co_filename):
            frame = frame.f_back
        user = _place(frame) if frame is not None else where
        key = (name, where, user)
        number = self._sites.get(key)
        if number is None:
            with self._lock:
                if len(self._sites) >= _MOST_SITES:
                    key = (name, "further call sites", "further call sites")
                number = self._sites.setdefault(key, len(self._sites))
                self._new_sites.append([number, *key])
        return number

    # Writing records ---------------------------------------------------------------------------

    def _write(self, *, final: bool) -> None:
        """Write new records. With `final`, also the final number of uses of each group."""
        with self._lock:
            sites, self._new_sites = self._new_sites, []
            groups, self._new_groups = self._new_groups, []
            calls, self._new_calls = self._new_calls, []
            more, self._more = self._more, {}
            self._flushed_ns = now_ns()
        fact: dict[str, Any] = {}
        if calls:
            base = calls[0][2]
            rows = [
                [s, c, (t0 - base) // 1000, took // 1000, b, a] for s, c, t0, took, b, a in calls
            ]
            fact |= {"base_ns": base, "calls": rows}
        for key, new in (("sites", sites), ("groups", groups)):
            if new:
                fact[key] = new
        if more:
            fact["more"] = [[site, n, ns // 1000] for site, (n, ns) in more.items()]
        if final or self._restore is None:
            fact["uses"] = {name: uses(group) for name, group in self._groups.items()}
            fact["final"] = final
        if fact:
            api.note(KIND, fact)

    def _write_native(self) -> None:
        """Write the counts of torch's flight recorder, if this rank has a group."""
        if self._groups and (native := flight_recorder()):
            api.note(KIND, {"native": native})

    def _watch_destroy(self) -> None:
        """Read the number of uses of a group before it is destroyed."""

        def make(original: Callable[..., None]) -> Callable[..., None]:
            def destroy_process_group(group: Any = None) -> None:
                self._guarded(self._before_destroy, group)
                original(group)

            return destroy_process_group

        name = f"{C10D}:destroy_process_group"
        install(name, make, also=("torch.distributed",), lever="audit")

    def _before_destroy(self, group: Any) -> None:
        name = group_name(group)
        world = group is None or name == group_name(None)
        going = list(self._groups) if world else [name] if name in self._groups else []
        if going:
            used = {one: uses(self._groups.pop(one)) for one in going if one is not None}
            api.note(KIND, {"uses": used, "final": True})

    def _leave(self, pid: int) -> None:
        if os.getpid() == pid:
            self._guarded(self._write, final=True)

    def _guarded(self, work: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        try:
            work(*args, **kwargs)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()
        log.warning("torchett: the audit is off: %s: %s", type(error).__name__, error)


def as_ranges(ranks: Iterable[int]) -> str:
    """Ranks as ranges: "0-3,8"."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in parts)


def _is_library(file: str) -> bool:
    return file.startswith((*_LIBRARIES, "<")) or f"{os.sep}site-packages{os.sep}" in file


def _place(frame: FrameType | None) -> str:
    """FILE:LINE, relative to the installed packages or to the working folder."""
    return "?" if frame is None else _file_line(frame.f_code.co_filename, frame.f_lineno)


@functools.lru_cache(1024)
def _file_line(file: str, line: int) -> str:
    root = next((root for root in _roots() if file.startswith(root)), "")
    return f"{file[len(root) :]}:{line}"


@functools.cache
def _roots() -> tuple[str, ...]:
    """Folders to cut from paths, the longest first; with the present working folder."""
    folders = {*_LIBRARIES, *(os.path.join(path, "") for path in sys.path if path)}
    folders.add(os.path.join(os.getcwd(), ""))
    return tuple(sorted(folders - {os.sep}, key=len, reverse=True))
