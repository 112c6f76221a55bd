"""A trainer's side of its keeper: begun, or adopted from the trainer before; told of snapshots."""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchett.levers.checkpoint.memory import nearby
from torchett.levers.checkpoint.memory.frames import receive, send
from torchett.levers.checkpoint.memory.kept import SnapshotId

log = logging.getLogger("torchett")

_MODULE = "torchett.levers.checkpoint.memory.keeper"
_WAIT_S = 30.0
_LINGER_S = 600.0  # how long a keeper waits for the next trainer while the launcher lives
_LINGER_ALONE_S = 60.0  # where nothing is known to begin one


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a keeper has to know of its job."""

    where: str
    job: str
    secret: bytes
    copy_bytes: int = 0  # how much it may hold for other nodes
    bytes_per_s: float = 250e6  # how fast it sends to its neighbour


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A buffer that was there already, and the token of the snapshot in it."""

    fd: int
    size: int
    token: str | None


class KeeperLink:
    """The keeper of this trainer. What it says arrives at `heard`, from a thread."""

    def __init__(self, settings: Settings, heard: Callable[[dict[str, Any]], None]) -> None:
        self._settings, self._heard = settings, heard
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._sending = threading.Lock()
        self._port: int | None = None
        self.cpu_s = 0.0  # that the keeper has needed since this trainer has it
        self._changed = threading.Condition()

    @property
    def lives(self) -> bool:
        return self._control is not None

    def begin(self, rank: int) -> list[Adopted]:
        """Adopt what is left of this rank on this node, else of any, else begin a new one."""
        left = [one for one in nearby.keepers_here(self._settings.where) if not one.trainer_lives]

        def of_another(keeper: nearby.KeeperHere) -> bool:
            return all(not one.own or one.sealed.id.rank != rank for one in keeper.snapshots)

        for keeper in sorted(left, key=of_another):
            adopted = self._adopt(keeper.name) if keeper.job == self._settings.job else None
            if adopted is not None:
                return adopted
        self._begin()
        return []

    def _adopt(self, name: str) -> list[Adopted] | None:
        with contextlib.suppress(OSError, EOFError, ValueError, KeyError):
            link = nearby.connect(name)
            said = {"pid": os.getpid(), "launcher": _launcher(), "job": self._settings.job}
            send(link, {"op": "adopt", **said})
            answer, _, fds = receive(link)
            if answer.get("ok"):
                link.settimeout(None)
                self._listen_to(link)
                return [
                    Adopted(
                        fd=fd,
                        size=int(told["size"]),
                        token=told["sealed"] and str(told["sealed"]["id"]["token"]),
                    )
                    for fd, told in zip(fds, answer["buffers"], strict=True)
                ]
            link.close()
        return None

    def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        env = {**os.environ, "ETT_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
        if sys.pycache_prefix is not None:
            env["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # a reader of the trainer's waits for its end
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # it is not to be ended with the trainer's group
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        settings = {
            "name": nearby.name_of(self._settings.where),
            "job": self._settings.job,
            "pid": os.getpid(),
            "launcher": _launcher(),
            "linger_s": _LINGER_S if _is_launched() else _LINGER_ALONE_S,
            "copy_bytes": self._settings.copy_bytes,
            "bytes_per_s": self._settings.bytes_per_s,
        }
        send(ours, settings, self._settings.secret)
        self._listen_to(ours)

    def _listen_to(self, control: socket.socket) -> None:
        self._control, self._port = control, None
        threading.Thread(
            target=self._listen, args=(control,), name="ett-keeper", daemon=True
        ).start()

    def _listen(self, control: socket.socket) -> None:
        try:
            while True:
                said, _, _ = receive(control)
                if said["said"] == "port":
                    with self._changed:
                        self._port = int(said["port"])
                        self._changed.notify_all()
                else:
                    self.cpu_s = float(said.get("cpu_s", 0.0))
                    self._heard(said)
        except (EOFError, OSError, ValueError, KeyError):
            pass
        if self._control is control:
            self._control = None
            self._heard({"said": "gone"})
        if self._process is not None:
            self._process.wait()

    def listen_at(self, host: str) -> int:
        """The port at which other nodes reach the keeper."""
        self._say({"op": "listen", "host": host})
        with self._changed:
            if not self._changed.wait_for(lambda: self._port is not None, _WAIT_S):
                raise OSError("the keeper does not answer")
            assert self._port is not None
            return self._port

    def partner(self, address: tuple[str, int] | None) -> None:
        """Where a copy of each snapshot goes."""
        self._say({"op": "partner", "address": address})

    def buffer(self, index: int, fd: int, size: int) -> None:
        self._say({"op": "buffer", "index": index, "size": size}, b"", (fd,))

    def begins(self, index: int) -> None:
        """The buffer is about to be written: what was in it is no snapshot any more."""
        self._say({"op": "begin", "index": index})

    def whole(self, index: int, id: SnapshotId, size: int, head: bytes) -> None:
        """All bytes are in the buffer: take their checksum, send a copy to the neighbour."""
        self._say({"op": "whole", "index": index, "size": size, "id": id.to_json()}, head)

    def leaves(self) -> None:
        """This trainer is about to end, and another one may come."""
        with contextlib.suppress(OSError):
            self._say({"op": "leaves"})

    def done(self) -> None:
        """The job has ended well: nothing has to be kept."""
        with contextlib.suppress(OSError):
            self._say({"op": "done"})
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)

    def _say(self, what: dict[str, Any], body: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        with self._sending:
            if self._control is None:
                raise OSError("the keeper is gone")
            send(self._control, what, body, fds)


def _is_launched() -> bool:
    """Whether something begins a trainer anew that fails."""
    return "ETT_LAUNCHER" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ


def _launcher() -> int:
    """The process with which the job ends: `ett run`, else this process's parent."""
    told = os.environ.get("ETT_LAUNCHER", "")
    return int(told) if told.isdigit() else os.getppid()
