"""Process groups that are made when they are first used, and one for all who ask for the same.

    with ett.lazy_groups():
        mesh = init_device_mesh(…)          # new_group returns at once
        pair = dist.new_group([0, 1])
    dist.all_reduce(x, group=pair)          # here the group is made, by its members alone

What new_group returns is a process group of torch's in every way that can be asked without
talking: rank, size, name, backend, members. Its first collective, from Python or from C++ (DDP,
functional collectives), makes the real one and hands everything on to it.

The conditions, which are why this has to be asked for:
- all ranks ask for the same groups in the same order, as torch itself wants it;
- a group's first use is a collective, to which all its members come. Its first send or recv would
  have to wait for members that never come: it raises;
- the members of two groups come to the groups' first collectives in the same order: while one is
  being made, a rank waits;
- who asks for a group of the same ranks, backend and time-out twice gets one: what runs on it runs
  in one order. Two that must run side by side (on two threads, on two streams) are made outside.

Groups with options of their own, on a bound device (where NCCL splits its communicators among all
ranks), or that synchronise locally, are made at once, as ever.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torchett.record.clock import now_ns
from torchett.startup.collectives import Function, swapped

PREFIX = "ett-lazy-"
_LAZY = {"ranks", "timeout", "backend", "group_desc"}  # what a request may say and still wait
_OWN = frozenset(
    {"rank", "size", "name", "boxed", "unbox", "group_name", "group_desc", "bound_device_id"}
    | {"_set_group_name", "_set_group_desc", "BackendType", "get_group_store"}
)
_ALONE = frozenset({"send", "recv", "recv_anysource", "_start_coalescing"})
_QUIET = frozenset({"shutdown", "abort", "_wait_for_pending_works", "set_timeout"})


@dataclass(slots=True, kw_only=True)
class Asked:
    """What became of the requests for groups inside a `with lazy_groups()`."""

    asked: int = 0  # groups this rank is a member of
    shared: int = 0  # of them, those that another request had asked for already
    at_once: int = 0  # of them, those that could not wait
    made: int = 0  # so far, because they were used
    made_ns: int = 0  # what making those took


@contextmanager
def lazy_groups() -> Iterator[Asked]:
    """In the body, `new_group` returns at once; a group is made when it is first used."""
    from torch.distributed import distributed_c10d

    asked = Asked()
    known: dict[tuple[Any, ...], Any] = {}

    def around(name: str, function: Function) -> Function:
        if name != "new_group":
            return function
        signature = inspect.signature(function)

        @functools.wraps(function)
        def new_group(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            if not _may_wait(signature, given.arguments):
                asked.at_once += 1
                return function(*args, **kwargs)
            return _lazily(asked, known, given.arguments)

        return new_group

    restore = swapped(distributed_c10d, around)
    try:
        yield asked
    finally:
        restore()


def _may_wait(signature: inspect.Signature, given: Mapping[str, Any]) -> bool:
    """Whether a request says nothing that keeps it from waiting; alike on all ranks."""
    from torch.distributed import distributed_c10d as c10d

    world = c10d._get_default_group()
    backend = str(given.get("backend") or c10d._world.pg_map[world][0]).lower()
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
    said = {name for name, value in given.items() if value is not defaults[name]}
    split = getattr(c10d, "_use_torchcomms_enabled", bool)()
    return said <= _LAZY and world.bound_device_id is None and backend != "mpi" and not split


def _lazily(asked: Asked, known: dict[tuple[Any, ...], Any], given: Mapping[str, Any]) -> Any:
    from torch.distributed import distributed_c10d as c10d

    world = c10d._get_default_group()
    members = given.get("ranks")
    ranks = sorted(range(world.size()) if members is None else members)
    if len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(world.size())):
        raise ValueError(f"ranks {ranks}: expected different ranks below {world.size()}")
    backend = c10d.Backend(given.get("backend") or c10d._world.pg_map[world][0])
    timeout = given.get("timeout") or c10d._get_default_timeout(backend)
    key = (*ranks, str(backend), timeout)
    if key not in known:  # counted by non-members too: the names must be the same on all ranks
        number = next(_numbers)
        known[key] = c10d.GroupMember.NON_GROUP_MEMBER
        if world.rank() in ranks:
            description = given.get("group_desc") or "undefined"
            known[key] = _handle(asked, ranks, backend, timeout, f"{PREFIX}{number}", description)
    elif world.rank() in ranks:
        asked.shared += 1
    asked.asked += world.rank() in ranks
    return known[key]


_numbers = iter(range(1 << 62))


def _handle(
    asked: Asked, ranks: list[int], backend: Any, timeout: Any, name: str, description: str
) -> Any:
    """A group that torch knows, and that is made when it is first used."""
    from torch.distributed import distributed_c10d as c10d

    world = c10d._get_default_group()
    store = c10d._world.pg_map[world][1]

    def make() -> Any:
        began = now_ns()
        made, _ = c10d._new_process_group_helper(
            len(ranks),
            ranks.index(world.rank()),
            ranks,
            backend,
            store,
            f"{name}-made",
            timeout=timeout,
            group_desc=description,
        )
        c10d._world.pg_group_ranks[made] = {rank: i for i, rank in enumerate(ranks)}
        # The handle stands for it: torch counts names to make new ones.
        c10d._world.pg_names.pop(made, None)
        asked.made += 1
        asked.made_ns += now_ns() - began
        return made

    group = _lazy_class()(ranks.index(world.rank()), len(ranks))
    group.lazy = _Lazy(make=make, ranks=ranks, name=name, description=description)
    c10d._world.pg_map[group] = (backend, store)
    c10d._world.pg_names[group] = name
    c10d._register_process_group(name, group)
    c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(backend))
    c10d._world.pg_to_tag[group] = f"ptd:{name}"
    c10d._world.tags_to_pg.setdefault(f"ptd:{name}", []).append(group)
    c10d._world.pg_group_ranks[group] = {rank: i for i, rank in enumerate(ranks)}
    return group


@dataclass(slots=True, kw_only=True)
class _Lazy:
    """What a handle needs to become a group."""

    make: Callable[[], Any]
    ranks: list[int]
    name: str
    description: str
    made: Any = None
    making: threading.Lock = field(default_factory=threading.Lock)

    def real(self, method: str = "") -> Any:
        """The group itself; made now if it is not yet."""
        with self.making:
            if self.made is None:
                if method in _ALONE:
                    raise RuntimeError(
                        f"torchett: the group of ranks {self.ranks} is first used by"
                        f" {method.strip('_')}, to which its other members do not come: make it"
                        " outside lazy_groups(), or let all of them meet on it first (barrier)"
                    )
                self.made = self.make()
            return self.made


@functools.cache
def _lazy_class() -> Any:
    """The class of such groups: every method that talks goes to the real group."""
    from torch.distributed import ProcessGroup

    class LazyGroup(ProcessGroup):  # type: ignore[misc]
        lazy: _Lazy

        @property
        def group_name(self) -> str:
            return self.lazy.name

        @property
        def group_desc(self) -> str:
            return self.lazy.description

        def getGroupName(self) -> str:  # noqa: N802  (C++ asks by this name)
            return self.lazy.name

        def getGroupDesc(self) -> str:  # noqa: N802
            return self.lazy.description

        def _get_sequence_number_for_group(self) -> int:
            made = self.lazy.made
            return made._get_sequence_number_for_group() if made is not None else 0

    def handed_on(method: str) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.lazy.made is None and method in _QUIET:
                return None
            return getattr(self.lazy.real(method), method)(*args, **kwargs)

        return call

    def looked_up(name: str) -> Any:
        return lambda self: getattr(self.lazy.real(), name)

    for name in dir(ProcessGroup):
        if name in _OWN or (name.startswith("__") or name in vars(LazyGroup)):
            continue
        theirs = inspect.getattr_static(ProcessGroup, name)
        if isinstance(theirs, property):
            setattr(LazyGroup, name, property(looked_up(name)))
        elif callable(theirs):
            setattr(LazyGroup, name, handed_on(name))
    return LazyGroup
