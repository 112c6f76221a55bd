"""The standbys of one agent: spawned ahead of need, handed a rank when one is started.

start     ▒▒▒▒ standbys 0, 1 import ─ go ─► ranks 0, 1 ─────────── ✗
later            (the ranks are under way) ▒▒▒▒ standbys 2, 3 ───── go ─► ranks 0, 1
"""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchett.record.memory import available_bytes, number_in

# What differs from rank to rank and from attempt to attempt: a standby learns it at "go".
PER_RANK = frozenset(
    (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        *("ETT_ATTEMPT", "ETT_RESTART", "ETT_ATTEMPT_BEGAN", "ETT_RECORDER", "ETT_BEGAN"),
    )
)
PRELOAD = (
    "torchett.launch.imports.libraries:load_beside",
    "torch",
    "torchett.launch.rehearsal:begin_hashing",
    "torchett.startup.fast_batch",
    "torch.distributed",
    "torch.utils.data",
    "torch._dynamo",
    "torchett.launch.imports.instructions:ask_beside",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch._inductor.compile_fx",
    "torch._inductor.codecache",
    "torch._inductor.graph",
    "torch._inductor.scheduler",
    "torch._functorch.aot_autograd",
    "torch._inductor.fx_passes.post_grad",
    "torch.distributed.tensor.experimental",  # by dynamo, when it first meets a function of torch
    "torchett.checkpoint.checkpointer",
    "torchett.checkpoint.restore",
    "torchett.compile.session",
    "torchett.compile.watch",
    "torchett.compile.pins",
    "torchett.launch.rehearsal:hash_sources",
)
FIRST_ON_DEVICE = ("torchett.launch.on_device:wake_driver",)
ON_DEVICE = ("torchett.launch.on_device:take_place", "torchett.launch.on_device:wake_triton")
REHEARSAL = (
    "torchett.launch.rehearsal:register_backends",
    "torchett.launch.rehearsal:probe_instructions",
    "torchett.launch.rehearsal:find_header",
    "torchett.launch.rehearsal:walk_the_compiler",
    "torchett.launch.imports.bundle:write",
    "torchett.launch.imports.hashes:remember",
)
COOKED = b"+"  # a standby has a model of the job compiled
ANEW = b"-"  # and has not any more: it begins anew
LEFT = b"."  # the last that is heard of a rank that ended well
_LENGTH = struct.Struct("<I")
_WEIGH_S = 5.0
_USUAL_BYTES = 1 << 30


def send(control: socket.socket, message: Mapping[str, Any]) -> None:
    data = json.dumps(message).encode()
    control.sendall(_LENGTH.pack(len(data)) + data)


def receive(control: socket.socket) -> dict[str, Any]:
    """The next message; EOFError if the other side is gone."""
    (length,) = _LENGTH.unpack(_exactly(control, _LENGTH.size))
    message: dict[str, Any] = json.loads(_exactly(control, length))
    return message


def _exactly(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = control.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


class _Process(subprocess.Popen[bytes]):
    """A standby's process, and then a rank's.

    One that ended well has said so with its last breath. The kernel may take half a second more
    to unpin its memory and take its context on the GPU apart: nobody waits for that.
    """

    control: socket.socket | None = None

    def poll(self) -> int | None:
        if self.returncode is None and self.control is not None and LEFT in _heard(self.control):
            self.returncode = 0
        return super().poll()


@dataclass(slots=True)
class _Standby:
    process: _Process
    control: socket.socket
    place: int  # the local rank it is meant for
    cooked: bool = False

    def has_cooked(self) -> bool:
        """Whether it has said that it knows the model, and nothing else since."""
        if heard := _heard(self.control):
            self.cooked = heard.endswith(COOKED)
        return self.cooked


class Standbys:
    """Keeps `size` standbys; uses the standard library only, so that it can begin at once."""

    def __init__(
        self,
        size: int,
        env: Mapping[str, str],
        preload: Sequence[str] = PRELOAD,
        *,
        on_device: bool = False,
    ) -> None:
        self._size, self._preload, self._on_device = size, tuple(preload), on_device
        self._env = common(env)
        self._waiting: list[_Standby] = []
        self._lock = threading.Lock()
        self._closed = False
        self._heaviest = _USUAL_BYTES
        self._weighed_s = time.monotonic()
        self.most_bytes = 0

    def fill(self, spare: bool = False) -> None:
        """Spawn what is missing; spare ones keep out of the way and have time to rehearse."""
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
        """The bytes that a standby will still take."""
        return max(0, self._heaviest - bytes_of(standby.process.pid))

    def take(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        stdout: str | None,
        stderr: str | None,
        *,
        if_cooked: bool = False,
    ) -> "subprocess.Popen[bytes] | None":
        """A standby that now runs `python argv…` with this environment; None if there is none."""
        if common(env) != self._env:
            return None  # torch may have read the difference when it was imported
        job: dict[str, Any] = {"argv": list(argv), "env": dict(env), "cwd": os.getcwd()}
        job |= {"stdout": stdout, "stderr": stderr}
        local_rank = env.get("LOCAL_RANK")
        while True:
            with self._lock:
                if not self._waiting:
                    return None
                meant = next((s for s in self._waiting if str(s.place) == local_rank), None)
                if if_cooked and not (meant is not None and meant.has_cooked()):
                    return None
                standby = meant or self._waiting[0]
                self._waiting.remove(standby)
            try:
                if standby.process.poll() is None:
                    send(standby.control, job)
                    standby.process.control = standby.control
                    if os.geteuid() == 0:
                        _be_nice(standby.process.pid, 0)
                    return standby.process
            except OSError:
                pass  # it died while it waited: the next one
            standby.process.kill()

    def weigh(self) -> None:
        """Note, now and then, what the waiting standbys hold in memory."""
        if time.monotonic() - self._weighed_s < _WEIGH_S:
            return
        self._weighed_s = time.monotonic()
        weights = [bytes_of(standby.process.pid) for standby in tuple(self._waiting)]
        self.most_bytes = max(self.most_bytes, sum(weights))
        self._heaviest = max(self._heaviest, *weights, 0)

    def close(self) -> None:
        """End the standbys that nobody needed."""
        with self._lock:
            self._closed = True
            for standby in self._waiting:
                standby.process.kill()
                standby.control.close()
            self._waiting = []  # the launcher adopts and buries them: nobody waits for that here

    def _spawn(self, place: int, spare: bool) -> _Standby:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-uP", "-m", "torchett.launch.standby", str(theirs.fileno())]
        if self._preload:
            first, last = (FIRST_ON_DEVICE, ON_DEVICE) if self._on_device else ((), ())
            command += [*first, *self._preload, *last, *REHEARSAL]
        env = self._env | {"ETT_PLACE": str(place)}
        process = _Process(command, env=env, pass_fds=(theirs.fileno(),), start_new_session=True)
        if spare and os.geteuid() == 0:  # only root can undo it when the standby is needed
            _be_nice(process.pid, 10)
        theirs.close()
        return _Standby(process, ours, place)


def _heard(control: socket.socket) -> bytes:
    """What a process has said meanwhile."""
    try:
        return control.recv(64, socket.MSG_DONTWAIT)
    except OSError:
        return b""


def bytes_of(pid: int) -> int:
    """Memory of a process, what it shares counted in part."""
    return number_in(f"/proc/{pid}/smaps_rollup", "Pss:") << 10


def _be_nice(pid: int, how: int) -> None:
    """Each thread by itself: one that a nice process began stays nice."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            os.setpriority(os.PRIO_PROCESS, int(thread), how)
        except ProcessLookupError:
            pass


def common(env: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that all ranks of all attempts share."""
    return {
        key: value
        for key, value in env.items()
        if key not in PER_RANK and not key.startswith("TORCHELASTIC_")
    }
