"""The private parts of torch.distributed that an audit needs, in one place.

Every Python collective and every function that makes a group is a wrapper of torch's own
(c10d_logger), which keeps the function it wraps in a closure cell. What is put into that cell is
seen by every caller, also by those that imported the name earlier, and torch.compile, which knows
these functions by identity, still finds the ones it knows.

    dist.all_reduce ──► wrapper ──[ func ]──► all_reduce
                                     └─ ours ──► all_reduce
"""

import importlib
import inspect
import math
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

OBJECT_COLLECTIVES = frozenset(
    {"all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"}
)
GROUP_MAKERS = frozenset({"init_process_group", "new_group", "split_group", "shrink_group"})
POINT_TO_POINT = frozenset({"send", "recv", "send_object_list", "recv_object_list"})
_INTERNAL = frozenset({"_store_based_barrier"})

Function = Callable[..., Any]


def swapped(c10d: ModuleType, around: Callable[[str, Function], Function]) -> Callable[[], None]:
    """Put `around(name, function)` in place of each function; what comes back undoes it."""
    undo: list[tuple[CellType, Function, Function]] = []
    for name, cell in _cells(c10d):
        theirs = cell.cell_contents
        ours = around(name, theirs)
        cell.cell_contents = ours
        undo.append((cell, ours, theirs))

    def restore() -> None:
        for cell, ours, theirs in undo:
            if cell.cell_contents is ours:  # whoever came after us keeps what is theirs
                cell.cell_contents = theirs

    return restore


def _cells(c10d: ModuleType) -> Iterator[tuple[str, CellType]]:
    """Name and cell of every function that torch's loggers wrap, each once."""
    seen = set[int]()
    for name, function in list(vars(c10d).items()):
        if type(function) is not FunctionType or name in _INTERNAL:
            continue
        code = function.__code__
        if "func" not in code.co_freevars or not code.co_filename.endswith("c10d_logger.py"):
            continue
        cell = (function.__closure__ or ())[code.co_freevars.index("func")]
        if id(cell) not in seen:
            seen.add(id(cell))
            yield function.__name__, cell


def place_of(function: Function, parameter: str) -> int:
    """At which position the function takes a parameter; −1 if it has none of that name."""
    names = list(inspect.signature(function).parameters)
    return names.index(parameter) if parameter in names else -1


def given(parameter: str, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call was given for a parameter; None if nothing."""
    return args[place] if 0 <= place < len(args) else kwargs.get(parameter)


def group_name(group: Any) -> str | None:
    """The name that all members know a group by; None for a group this rank is not in."""
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
    """How many collectives a group has run, those from C++ included; None where it cannot say."""
    try:
        return int(group._get_sequence_number_for_group())
    except Exception:  # a backend that does not count, or a group that was destroyed
        return None


def bytes_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The bytes of the larger side of a collective: what goes in or what comes out on this rank."""
    return max((_size(value) for value in (*args, *kwargs.values())), default=0)


def _size(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    try:
        return int(getattr(value, "nbytes", 0))
    except Exception:  # a sparse tensor has no bytes to speak of
        return 0


_SIZES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2}


def flight_recorder() -> list[tuple[str, str, int, int]]:
    """Group, operation, how often and how many bytes: what torch's own flight recorder holds.

    It sees what Python does not, DDP's collectives and every other of C++, and keeps the last 2000;
    those that an object collective is made of count one by one. Empty where there is none.
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
