"""One clock per host: durations are monotonic, an anchor says where they lie in wall time.

Monotonic clocks of all processes on one boot of one host agree, so records of a host are placed
by one anchor however often its wall clock is stepped in between.
"""

import os
import time
from dataclasses import asdict, dataclass
from typing import Any

now_ns = time.monotonic_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The same instant on two clocks, and which monotonic clock that is."""

    host: str
    clock: str  # boot id and time namespace: equal for processes that share a monotonic clock
    wall_ns: int
    mono_ns: int

    @property
    def offset_ns(self) -> int:
        """What to add to a monotonic time to get wall time."""
        return self.wall_ns - self.mono_ns

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Any) -> "Anchor":
        """The anchor in a decoded header; ValueError if it is not one."""
        try:
            return Anchor(
                host=str(value["host"]),
                clock=str(value["clock"]),
                wall_ns=int(value["wall_ns"]),
                mono_ns=int(value["mono_ns"]),
            )
        except (TypeError, KeyError, OverflowError) as error:
            raise ValueError(f"expected an anchor, found {value!r}") from error


def anchor() -> Anchor:
    """This process's anchor: the tightest of a few readings."""
    readings = []
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        readings.append((after - before, wall, (before + after) // 2))
    _, wall, mono = min(readings)
    return Anchor(host=os.uname().nodename, clock=clock_id(), wall_ns=wall, mono_ns=mono)


def clock_id() -> str:
    """Names the monotonic clock of this process."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/time')}"
    except OSError:
        return os.uname().nodename


def process_start_ticks(pid: int | str = "self") -> int | None:
    """When a process of this host started, in clock ticks since boot; None if unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def process_start_ns(pid: int | str = "self") -> int | None:
    """When a process of this host started, on the monotonic clock (to 10 ms); None if unknown."""
    ticks = process_start_ticks(pid)
    if ticks is None or not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    asleep = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK")) - asleep
