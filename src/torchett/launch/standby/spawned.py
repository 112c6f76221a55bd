"""Spawned standbys: a process for each rank of the next attempt, started ahead of need.

start     ▒▒▒▒ standbys 0, 1 import ─ job ─► ranks 0, 1 ────────── ✗
later            (the ranks are under way) ▒▒▒▒ standbys 2, 3 ──── job ─► ranks 0, 1

Uses the standard library only, so that it can begin before torch is imported.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchett.launch.standby.job import ENDED_WELL, common, send
from torchett.launch.standby.pool import differs
from torchett.record.process.memory import available_bytes, number_in

_WEIGH_S = 5.0
_USUAL_BYTES = 1 << 30


class _Process(subprocess.Popen[bytes]):
    """The process of a standby, which becomes that of a rank.

    A rank that exits with status 0 sends ENDED_WELL first, so the agent does not wait for the
    kernel to free its memory and its GPU context, which may take half a second.
    """

    control: socket.socket | None = None

    def poll(self) -> int | None:
        if self.returncode is None and self.control is not None and _heard(self.control):
            self.returncode = 0
        return super().poll()


@dataclass(slots=True)
class _Standby:
    process: _Process
    control: socket.socket
    place: int  # the local rank it is meant for


class SpawnedStandbys:
    """Keeps `size` standbys; see StandbyPool."""

    def __init__(
        self,
        size: int,
        env: Mapping[str, str],
        preload: Sequence[str] = (),
        rehearsal: Sequence[str] = (),
    ) -> None:
        self._size, self._modules = size, (*preload, *rehearsal)
        self._env = common(env)
        self._waiting: list[_Standby] = []
        self._lock = threading.Lock()
        self._closed = False
        self._heaviest = _USUAL_BYTES
        self._weighed_s = time.monotonic()
        self.most_bytes = 0

    def fill(self, spare: bool = False) -> None:
        """Spawn missing standbys; spare ones wait for free memory and run at low priority."""
        with self._lock:
            self._waiting = [s for s in self._waiting if s.process.poll() is None]
            room = available_bytes() - sum(map(self._yet_to_grow, self._waiting)) if spare else 0
            while not self._closed and len(self._waiting) < self._size:
                if spare and room < 2 * self._heaviest:
                    return  # the ranks need it more
                room -= self._heaviest
                taken = {standby.place for standby in self._waiting}
                place = next(n for n in range(self._size) if n not in taken)
                self._waiting.append(self._spawn(place, spare))

    def _yet_to_grow(self, standby: _Standby) -> int:
        """The bytes that a standby will still allocate."""
        return max(0, self._heaviest - bytes_of(standby.process.pid))

    def take(self, job: Mapping[str, Any]) -> "subprocess.Popen[bytes] | None":
        """A standby that now runs this rank; None if there is none, or its environment differs."""
        if differs(common(job["env"]), self._env):
            return None
        local_rank = job["env"].get("LOCAL_RANK")
        while True:
            with self._lock:
                if not self._waiting:
                    return None
                meant = next((s for s in self._waiting if str(s.place) == local_rank), None)
                standby = meant or self._waiting[0]
                self._waiting.remove(standby)
            try:
                if standby.process.poll() is None:
                    if os.geteuid() == 0:
                        _be_nice(standby.process.pid, 0)  # first: the job may begin threads
                    send(standby.control, job)
                    standby.process.control = standby.control
                    return standby.process
            except OSError:
                pass  # it died while it waited: the next one
            standby.process.kill()

    def weigh(self) -> None:
        if time.monotonic() - self._weighed_s < _WEIGH_S:
            return
        self._weighed_s = time.monotonic()
        weights = [bytes_of(standby.process.pid) for standby in tuple(self._waiting)]
        self.most_bytes = max(self.most_bytes, sum(weights))
        self._heaviest = max(self._heaviest, *weights, 0)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for standby in self._waiting:
                standby.process.kill()
                standby.control.close()
            self._waiting = []  # the launcher is their subreaper: nothing waits for them here

    def _spawn(self, place: int, spare: bool) -> _Standby:
        ours, theirs = socket.socketpair()
        module = "torchett.launch.standby.rank_process"
        command = [sys.executable, "-uP", "-m", module, "--standby", str(theirs.fileno())]
        process = _Process(
            [*command, *self._modules],
            env=self._env | {"ETT_PLACE": str(place)},
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        if spare and os.geteuid() == 0:  # only root can undo it when the standby is needed
            _be_nice(process.pid, 10)
        theirs.close()
        return _Standby(process, ours, place)


def _heard(control: socket.socket) -> bool:
    """Whether the rank has sent ENDED_WELL."""
    try:
        return ENDED_WELL in control.recv(64, socket.MSG_DONTWAIT)
    except OSError:
        return False


def bytes_of(pid: int) -> int:
    """Memory of a process, what it shares counted in part."""
    return number_in(f"/proc/{pid}/smaps_rollup", "Pss:") << 10


def _be_nice(pid: int, how: int) -> None:
    """Set the priority of each thread: a thread keeps the one it was started with."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            os.setpriority(os.PRIO_PROCESS, int(thread), how)
        except ProcessLookupError:
            pass
