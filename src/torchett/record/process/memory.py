"""How much memory is available: that of the machine, or of the tightest cgroup of this process.

/sys/fs/cgroup/job_7/step_0/task_1   each with a bound of its own, or none
               ◄─────── the least that any of them has left
"""

import sys
from collections.abc import Iterator
from pathlib import PurePosixPath

_ROOT = "/sys/fs/cgroup"


def available_bytes() -> int:
    """What a process of this cgroup could still allocate; reclaimable pages count as free."""
    free = number_in("/proc/meminfo", "MemAvailable:") << 10
    left = [free] if free else []
    for folder in _groups():
        if most := number_in(f"{folder}/memory.max"):
            used, droppable = number_in(f"{folder}/memory.current"), "inactive_file"
        elif most := number_in(f"{folder}/memory.limit_in_bytes"):  # the first version of groups
            used, droppable = number_in(f"{folder}/memory.usage_in_bytes"), "total_inactive_file"
        else:
            continue
        left.append(most - used + number_in(f"{folder}/memory.stat", droppable))
    return max(min(left, default=sys.maxsize), 0)


def _groups() -> Iterator[str]:
    """The folders of the cgroups of this process, inner ones first.

    In a container a process may see its own group as the root, or a path that does not exist.
    """
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        lines = []
    for _, kinds, path in (line for line in lines if len(line) == 3):
        if not kinds or "memory" in kinds.split(","):
            root = f"{_ROOT}/memory" if kinds else _ROOT
            inner = PurePosixPath(path)
            yield from (f"{root}{one}".rstrip("/") for one in (inner, *inner.parents))


def number_in(path: str, key: str = "") -> int:
    """The number in the line that begins with `key`; 0 if there is none."""
    try:
        with open(path, encoding="ascii") as file:
            line = next(line for line in file if line.startswith(key))
            return int(line.removeprefix(key).split()[0])
    except (OSError, ValueError, IndexError, StopIteration):
        return 0
