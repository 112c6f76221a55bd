"""The private parts of torch.distributed that the audit uses.

Every Python collective and every function that makes a group is a wrapper from torch's c10d_logger.
The wrapper holds the wrapped function in a closure cell. A function put into that cell is called by
every caller, also by modules that imported the name earlier. torch.compile recognizes the wrappers
by identity, and they do not change.

    dist.all_reduce ──► wrapper ──[ func ]──► all_reduce
                                     └─ ours ──► all_reduce
"""

import importlib
import inspect
import math
import pickle
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from torchett.record.patches import install_inside

OBJECT_COLLECTIVES = frozenset(
    {"all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"}
)
GROUP_MAKERS = frozenset({"init_process_group", "new_group", "split_group", "shrink_group"})
POINT_TO_POINT = frozenset({"send", "recv", "send_object_list", "recv_object_list"})
_INTERNAL = frozenset({"_store_based_barrier"})

Function = Callable[..., Any]


C10D = "torch.distributed.distributed_c10d"


def swapped(
    around: Callable[[str, Function], Function], lever: str, only: str | None = None
) -> Callable[[], None]:
    """Replace each function by `around(name, function)`; returns a function that restores them."""
    names = [only] if only is not None else _logged(sys.modules[C10D])
    patches = [
        install_inside(f"{C10D}:{name}", partial(around, name), lever=lever) for name in names
    ]

    def restore() -> None:
        for patch in patches:
            if patch is not None:
                patch.remove()

    return restore


def _logged(c10d: ModuleType) -> Iterator[str]:
    """The names of all functions that c10d_logger wraps, each once."""
    seen = set[int]()
    for name, function in list(vars(c10d).items()):
        if type(function) is not FunctionType or name in _INTERNAL:
            continue
        code = function.__code__
        if "func" not in code.co_freevars or not code.co_filename.endswith("c10d_logger.py"):
            continue
        if id(function) not in seen:
            seen.add(id(function))
            yield function.__name__


def place_of(function: Function, parameter: str) -> int:
    """The position of a parameter in the function; −1 if it has none of that name."""
    names = list(inspect.signature(function).parameters)
    return names.index(parameter) if parameter in names else -1


def given(parameter: str, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The argument of a call for a parameter; None if it has none."""
    return args[place] if 0 <= place < len(args) else kwargs.get(parameter)


def group_name(group: Any) -> str | None:
    """The name of a group, equal on all members; None if this rank is not a member."""
    if group is None:
        import torch.distributed as dist

        group = dist.group.WORLD
    name = getattr(group, "group_name", None)
    return None if name is None else str(name)


def group_ranks(group: Any) -> list[int]:
    """The global ranks of a group's members."""
    import torch.distributed as dist

    return list(dist.get_process_group_ranks(group))


def backend_of(group: Any) -> str:
    import torch.distributed as dist

    return str(dist.get_backend(group))


def uses(group: Any) -> int | None:
    """The number of collectives a group has run, with those of C++; None if it is unknown."""
    try:
        return int(group._get_sequence_number_for_group())
    except Exception:  # a backend that does not count, or a group that was destroyed
        return None


def bytes_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The bytes of a collective on this rank: of its input or its output, whichever is larger."""
    return max((_size(value) for value in (*args, *kwargs.values())), default=0)


def _size(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    try:
        return int(getattr(value, "nbytes", 0))
    except Exception:  # a sparse tensor has no `nbytes`
        return 0


_SIZES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2}


def flight_recorder() -> list[tuple[str, str, int, int]]:
    """(group, operation, calls, bytes) from torch's own flight recorder; empty without one.

    It also holds the collectives of C++, such as those of DDP. It keeps the last 2000 entries. The
    collectives inside an object collective are counted one by one.
    """
    try:
        native = importlib.import_module("torch._C._distributed_c10d")
        entries = pickle.loads(native._dump_fr_trace(True, False, False))["entries"]
    except Exception:  # not in this torch, or switched off
        return []
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for entry in entries:
        group, operation = str(entry["process_group"][0]), str(entry["profiling_name"])
        sides = [
            sum(
                math.prod(size) * _SIZES.get(kind, 1)
                for size, kind in zip(sizes, kinds, strict=False)
            )
            for sizes, kinds in (
                (entry["input_sizes"], entry["input_dtypes"]),
                (entry["output_sizes"], entry["output_dtypes"]),
            )
        ]
        counted = found[group, operation]
        counted[0] += 1
        counted[1] += max(sides)
    return [(group, operation, n, size) for (group, operation), (n, size) in found.items()]
