"""How many processes the kernel has killed for memory, by its own counters.

cgroup v2   memory.events        oom_kill 1      of this cgroup and those in it
cgroup v1   memory.oom_control   oom_kill 1      of this cgroup
the host    /proc/vmstat         oom_kill 1      of all cgroups and the host itself
"""

import re
from pathlib import Path
from typing import Final

_COUNT: Final = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class MemoryKills:
    """The counters of this process's cgroup and of the host, and what they were."""

    def __init__(self) -> None:
        self._paths = _counters()
        self._known = self._read()

    def new(self) -> int | None:
        """Kills of this cgroup since the last look; None where that cannot be told.

        The host's counter rises for every job's: alone it tells only that nothing was killed.
        """
        now = self._read()
        rises = [max(count - self._known.get(path, count), 0) for path, count in now.items()]
        self._known = now
        if not rises or (len(rises) > 1 and not rises[0] and rises[-1]):
            return None
        return rises[0]

    def _read(self) -> dict[Path, int]:
        found = {}
        for path in self._paths:
            try:
                count = _COUNT.search(path.read_text())
            except OSError:
                continue
            if count is not None:
                found[path] = int(count[1])
        return found


def _counters() -> list[Path]:
    """The counters that exist, this cgroup's before the host's."""
    mounts = Path("/sys/fs/cgroup")
    paths = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        number, controllers, place = line.split(":", 2)
        inside = place.lstrip("/")
        if number == "0":
            paths += [
                mounts / inside / "memory.events",
                mounts / "unified" / inside / "memory.events",
            ]
        elif "memory" in controllers.split(","):
            paths.append(mounts / "memory" / inside / "memory.oom_control")
    return [path for path in (*paths, Path("/proc/vmstat")) if path.exists()]
