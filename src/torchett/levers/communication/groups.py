"""Process groups that are made at their first use, and shared between equal requests.

    with ett.lazy_groups():
        mesh = init_device_mesh(…)          # new_group returns at once
        pair = dist.new_group([0, 1])
    dist.all_reduce(x, group=pair)          # here the group is made, by its members alone

new_group returns a ProcessGroup with all properties that need no communication: rank, size, name,
backend, members. Its first collective, from Python or from C++ (DDP, functional collectives), makes
the real group. All calls are forwarded to that one.

Because of these conditions, lazy groups are opt-in:
- All ranks request the same groups in the same order, as torch itself requires.
- The first use of a group is a collective of all its members. A first send or recv would wait for
  members that never join, so it raises.
- The members of two groups call the first collectives of these groups in the same order: a rank
  waits while a group is made.
- A second group with the same ranks, backend and time-out is the first one, so its collectives run
  in one order. Make groups that must run in parallel (on two threads or streams) outside.

A group with special options, on a bound device (NCCL then splits communicators among all ranks), or
with local synchronization is made at once, as without this.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torchett.levers.communication.collectives import Function, swapped
from torchett.record.clock import now_ns

PREFIX = "ett-lazy-"
_LAZY = {"ranks", "timeout", "backend", "group_desc"}  # arguments of a group that can be lazy
_OWN = frozenset(
    {"rank", "size", "name", "boxed", "unbox", "group_name", "group_desc", "bound_device_id"}
    | {"_set_group_name", "_set_group_desc", "BackendType", "get_group_store"}
)
_ALONE = frozenset({"send", "recv", "recv_anysource", "_start_coalescing"})
_QUIET = frozenset({"shutdown", "abort", "_wait_for_pending_works", "set_timeout"})


@dataclass(slots=True, kw_only=True)
class Asked:
    """Counts of the requests for groups inside a `with lazy_groups()`."""

    asked: int = 0  # groups this rank is a member of
    shared: int = 0  # of these, equal to an earlier request
    at_once: int = 0  # made at once, because they cannot be lazy
    made: int = 0  # made so far, because they were used
    made_ns: int = 0  # the time of making them


@contextmanager
def lazy_groups() -> Iterator[Asked]:
    """In the body, `new_group` returns at once; a group is made at its first use."""
    import torch.distributed.distributed_c10d  # noqa: F401  (to be patched)

    asked = Asked()
    known: dict[tuple[Any, ...], Any] = {}

    def around(name: str, function: Function) -> Function:
        signature = inspect.signature(function)

        def new_group(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            if not _can_be_lazy(signature, given.arguments):
                asked.at_once += 1
                return function(*args, **kwargs)
            return _lazily(asked, known, given.arguments)

        return new_group

    restore = swapped(around, "lazy-groups", "new_group")
    try:
        yield asked
    finally:
        restore()


def _can_be_lazy(signature: inspect.Signature, given: Mapping[str, Any]) -> bool:
    """Whether a group with these arguments can be lazy; the same on all ranks."""
    from torch.distributed import distributed_c10d as c10d

    world = c10d._get_default_group()
    backend = str(given.get("backend") or c10d._world.pg_map[world][0]).lower()
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
    passed = {name for name, value in given.items() if value is not defaults[name]}
    split = getattr(c10d, "_use_torchcomms_enabled", bool)()
    return passed <= _LAZY and world.bound_device_id is None and backend != "mpi" and not split


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
    """A group that is registered with torch, and made at its first use."""
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
        # Only the handle keeps a name: torch counts names to make new ones.
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
    """The state of a lazy group: how to make the real one, and the real one if it is made."""

    make: Callable[[], Any]
    ranks: list[int]
    name: str
    description: str
    made: Any = None
    making: threading.Lock = field(default_factory=threading.Lock)

    def real(self, method: str = "") -> Any:
        """The real group; made now if it does not exist yet."""
        with self.making:
            if self.made is None:
                if method in _ALONE:
                    raise RuntimeError(
                        f"torchett: the first use of the group of ranks {self.ranks} is"
                        f" {method.strip('_')}, which not all its members call: make the group"
                        " outside lazy_groups(), or call a barrier on it first"
                    )
                self.made = self.make()
            return self.made


@functools.cache
def _lazy_class() -> Any:
    """The class of lazy groups: every method that communicates is forwarded to the real group."""
    from torch.distributed import ProcessGroup

    class LazyGroup(ProcessGroup):  # type: ignore[misc]
        lazy: _Lazy

        @property
        def group_name(self) -> str:
            return self.lazy.name

        @property
        def group_desc(self) -> str:
            return self.lazy.description

        def getGroupName(self) -> str:  # noqa: N802  (C++ calls this name)
            return self.lazy.name

        def getGroupDesc(self) -> str:  # noqa: N802
            return self.lazy.description

        def _get_sequence_number_for_group(self) -> int:
            made = self.lazy.made
            return made._get_sequence_number_for_group() if made is not None else 0

    def forwarded(method: str) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.lazy.made is None and method in _QUIET:
                return None
            return getattr(self.lazy.real(method), method)(*args, **kwargs)

        return call

    def real_property(name: str) -> Any:
        return lambda self: getattr(self.lazy.real(), name)

    for name in dir(ProcessGroup):
        if name in _OWN or (name.startswith("__") or name in vars(LazyGroup)):
            continue
        original = inspect.getattr_static(ProcessGroup, name)
        if isinstance(original, property):
            setattr(LazyGroup, name, property(real_property(name)))
        elif callable(original):
            setattr(LazyGroup, name, forwarded(name))
    return LazyGroup
