"""Hung ranks: detected by heartbeat and CPU time, not by a collective's time-out.

A recorder beats once a second from a thread of its own, into shared memory. A rank hangs when

    stopped     its process is stopped by a signal (SIGSTOP): after 8 s
    left        a peer has exited, and this rank neither beats nor uses a processor: after 8 s
    silent      it neither beats nor uses a processor: after the whole time-out, 60 s

A rank that is only slow (a long compile, a pickle that keeps the interpreter busy, waiting for
data) beats or uses a processor, and is left alone. So is one that a debugger holds.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchett.record.flight.ring import Pulse, pulse, rings

PROVED_S = 8.0
# A thread that waits for the GIL wakes up 200 times a second and uses some 0.1% of a
# processor: so little is no sign of life, or a rank that hangs with the interpreter is never seen.
_IDLE = 0.05
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The signs of life of a process: its state, CPU time, last heartbeat (0: none)."""

    state: str
    cpu_ticks: int
    beat_ns: int
    stepped: bool = False
    traced: bool = False  # by a debugger


class HangWatch:
    """Keeps for each process since when it has shown no sign of life."""

    def __init__(self, timeout_s: float) -> None:
        self._silent_ns = int(timeout_s * 1e9)
        self._proved_ns = int(min(timeout_s, PROVED_S) * 1e9)
        self._last: dict[int, tuple[Life, int]] = {}  # pid → what was seen, since when unchanged
        self._left_ns: int | None = None  # since when peers are seen to have exited

    def hung(self, lives: Mapping[int, Life], now_ns: int, *, peer_left: bool = False) -> list[int]:
        """The processes that have shown no life for so long that they hang.

        `peer_left`: a rank that they work with has exited.
        """
        if not peer_left:
            self._left_ns = None
        elif self._left_ns is None:
            self._left_ns = now_ns
        found = []
        for pid, life in lives.items():
            before = self._last.get(pid)
            if before is None or _lives(before[0], life, now_ns - before[1]):
                self._last[pid] = life, now_ns
                continue
            silent_ns = now_ns - before[1]
            left_ns = now_ns - self._left_ns if self._left_ns is not None else 0
            proved_ns = silent_ns if life.state == "T" else min(silent_ns, left_ns)
            if silent_ns >= self._silent_ns or proved_ns >= self._proved_ns:
                found.append(pid)
        self._last = {pid: seen for pid, seen in self._last.items() if pid in lives}
        return found


def _lives(before: Life, now: Life, apart_ns: int) -> bool:
    """Whether there was a sign of life in between; a process that never beat needs none."""
    if now.traced:
        return True
    if now.state == "T":
        return before.state != "T"
    worked_ns = (now.cpu_ticks - before.cpu_ticks) * _TICK_NS
    return not now.beat_ns or now.beat_ns != before.beat_ns or worked_ns > _IDLE * apart_ns


def look(pids: Mapping[int, int], run: Path, attempt: int, restart: int) -> dict[int, Life]:
    """The life of each process of this attempt of a run, given by its rank.

    Nothing of the run's folder is read: it may hang, and the ranks do not.
    """
    lives = {}
    for rank, pid in pids.items():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue  # it is over: the agent sees that
        fields = stat.rpartition(")")[2].split()
        if fields[0] in "ZX":
            continue
        known = _pulse(run, f"{attempt}.{restart}-{rank}-{pid}-")
        lives[pid] = Life(
            state=fields[0],
            cpu_ticks=int(fields[11]) + int(fields[12]),
            beat_ns=known.beat_ns if known else 0,
            stepped=known.stepped if known else False,
            traced=fields[0] == "t" or _tracer(status) != 0,
        )
    return lives


def _tracer(status: str) -> int:
    """The process that traces this one; 0 if none does."""
    line = next((ln for ln in status.splitlines() if ln.startswith("TracerPid:")), "TracerPid: 0")
    return int(line.split()[1])


def _pulse(run: Path, lane: str) -> Pulse | None:
    """The pulse of the newest ring of that lane."""
    found = [seen for path in rings(run, lane) if (seen := pulse(path)) is not None]
    return max(found, key=lambda seen: seen.beat_ns, default=None)
