"""The keeper: a small process beside each trainer that holds its snapshots and outlives it.

    trainer    step ─ copies into buffer 1 ─ whole ── ✗ killed          restarts, adopts the keeper
    keeper        holds buffers 0, 1, 2 ── checksum of 1 ── copy to the neighbour ── hands out 1

The buffers are anonymous shared memory: they are gone with the last process that holds them, so
nothing stays in /dev/shm. A keeper ends when its job has ended well, when the launcher is gone, or
when no trainer has come for a while. Run by `python -m` with the number of a socket; it imports
neither torch nor anything else that is large.
"""

import contextlib
import os
import queue
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from torchett.levers.checkpoint.memory import neighbour
from torchett.levers.checkpoint.memory.frames import receive, send
from torchett.levers.checkpoint.memory.kept import Buffer, Sealed, SnapshotId
from torchett.record.identity import KEEPER
from torchett.record.priority import lower_priority

_LOOK_S = 0.25
_SEAL_S = 5.0  # how long a request waits for a checksum that is being computed
_OF_THE_TRAINER = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_NICE = 5  # at 19 a snapshot takes minutes to be whole where trainers keep all cores busy
_CREDENTIALS = struct.Struct("3i")


class Keeper:
    """Holds one rank's buffers and copies of other nodes' ranks."""

    def __init__(self, settings: dict[str, Any], secret: bytes) -> None:
        self._secret = secret
        self._job, self._linger_s = str(settings["job"]), float(settings["linger_s"])
        self._launcher = _Process(int(settings["launcher"]))
        self._buffers: dict[int, Buffer] = {}
        self._copies = neighbour.Copies(int(settings["copy_bytes"]))
        self._partner: neighbour.Address | None = None
        self._bytes_per_s = float(settings["bytes_per_s"])
        self._port = 0
        self._lock = threading.RLock()
        self._trainer = _Process(int(settings["pid"]))
        self._control: socket.socket | None = None
        self._alone_since = time.monotonic()
        self._cpu_began_s = time.process_time()  # before this trainer came
        self._seals: queue.SimpleQueue[tuple[SnapshotId, int, int, bytes]] = queue.SimpleQueue()
        self._unsealed = 0
        self._changed = threading.Condition(self._lock)
        self.over = threading.Event()

    def live(self, listener: socket.socket, control: socket.socket) -> None:
        """Serve until nobody can need it any more."""
        self._control = control
        for work in (
            partial(self._obey, control),
            partial(self._accept, listener, self._answer),
            self._seal_all,
        ):
            threading.Thread(target=work, daemon=True).start()
        while not self.over.wait(_LOOK_S):
            if self._trainer.is_alive():
                self._alone_since = time.monotonic()
            elif (
                not self._launcher.is_alive()
                or time.monotonic() - self._alone_since > self._linger_s
            ):
                return

    # What the trainer says -------------------------------------------------------------------

    def _obey(self, control: socket.socket) -> None:
        """Do what the trainer says until it is gone."""
        with contextlib.suppress(EOFError, OSError, ValueError):
            while True:
                said, body, fds = receive(control)
                with self._lock:
                    if control is not self._control:
                        break
                    self._do(control, said, body, fds)
        control.close()
        with self._changed:
            if self._control is control:
                self._control = None
            self._changed.notify_all()

    def _do(
        self, control: socket.socket, said: dict[str, Any], body: bytes, fds: list[int]
    ) -> None:
        op = said["op"]
        if op == "buffer":
            if (old := self._buffers.pop(int(said["index"]), None)) is not None:
                old.close()
            self._buffers[int(said["index"])] = Buffer(fds[0], int(said["size"]))
        elif op == "begin":
            self._buffers[int(said["index"])].sealed = None
        elif op == "whole":
            self._unsealed += 1
            id = SnapshotId.from_json(said["id"])
            self._seals.put((id, int(said["index"]), int(said["size"]), body))
        elif op == "partner":
            address = said["address"]
            self._partner = (str(address[0]), int(address[1])) if address else None
        elif op == "listen":
            send(control, {"said": "port", "port": self._listen(str(said["host"]))})
        elif op == "leaves":  # another one of the same process may come
            self._trainer = _Process(0)
        elif op == "done":
            self.over.set()

    def _listen(self, host: str) -> int:
        """The port at which other nodes reach this keeper."""
        if not self._port:
            listener = socket.create_server((host, 0), backlog=64)
            self._port = int(listener.getsockname()[1])
            work = partial(self._accept, listener, self._serve_node)
            threading.Thread(target=work, daemon=True).start()
        return self._port

    # Checksums and copies --------------------------------------------------------------------

    def _seal_all(self) -> None:
        while True:
            id, index, size, head = self._seals.get()
            began = time.monotonic()
            sealed, error = None, "the buffer is gone"
            with self._lock:
                buffer = self._buffers.get(index)
            if buffer is not None:
                try:
                    sealed = buffer.seal(id, head, size)
                except (OSError, ValueError) as failure:
                    error = str(failure)
            with self._changed:
                self._unsealed -= 1
                self._changed.notify_all()
            told = {"token": id.token, "seconds": time.monotonic() - began}
            self._say({"said": "sealed", **told, "error": None if sealed else error})
            if sealed is not None and buffer is not None:
                self._say({"said": "copied", **told, "error": self._copy(sealed, buffer)})

    def _copy(self, sealed: Sealed, buffer: Buffer) -> str | None:
        """Why the neighbour has no copy; None if it has one, or if there is no neighbour."""
        if self._partner is None:
            return None
        try:
            with buffer.viewed() as view:
                data = view[: sealed.size]
                neighbour.put(self._partner, self._secret, sealed, data, self._bytes_per_s)
        except Exception as error:  # whatever it is, the next snapshot is sent again
            return f"{self._partner[0]}:{self._partner[1]}: {type(error).__name__}: {error}"
        return None

    def _say(self, what: dict[str, Any]) -> None:
        control = self._control
        if control is not None:
            with contextlib.suppress(OSError):
                cpu_s = time.process_time() - self._cpu_began_s
                send(control, {**what, "cpu_s": cpu_s})

    # What others ask -------------------------------------------------------------------------

    def _accept(self, listener: socket.socket, serve: Any) -> None:
        while True:
            link, _ = listener.accept()
            threading.Thread(target=self._serve, args=(serve, link), daemon=True).start()

    def _serve(self, serve: Any, link: socket.socket) -> None:
        try:
            if serve(link):
                return  # the connection has become the trainer's
        except (EOFError, OSError, ValueError, KeyError, TypeError):
            pass
        link.close()

    def _serve_node(self, link: socket.socket) -> bool:
        neighbour.serve(link, self._secret, self._copies, self._snapshots())
        return False

    def _answer(self, link: socket.socket) -> bool:
        """Answer a process of this node and this user; whether it is the trainer from now on."""
        told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(told)[1] != os.getuid():
            return False
        while True:
            said, _, _ = receive(link)
            self._settle()
            if said["op"] == "list":
                send(link, self._listing(), self._secret)
            elif said["op"] == "map":
                self._hand_out(link, said)
            elif said["op"] == "forget":
                self._forget(said["but"])
                send(link, {"ok": True})
            elif said["op"] == "end":
                send(link, {"ok": not self._trainer.is_alive()})
                if not self._trainer.is_alive():
                    self.over.set()
            elif said["op"] == "adopt" and self._adopt(link, said):
                return True

    def _settle(self) -> None:
        """Wait for what a dead trainer has said last, and for the checksum of it."""
        with self._changed:
            until = time.monotonic() + _SEAL_S

            def is_settled() -> bool:
                control = self._control
                heard = self._trainer.is_alive() or control is None or not _readable(control)
                return heard and not self._unsealed

            while not is_settled() and time.monotonic() < until:
                self._changed.wait(0.01)

    def _snapshots(self) -> Iterator[tuple[Sealed, Buffer]]:
        with self._lock:
            own = [(one.sealed, one) for one in self._buffers.values() if one.sealed is not None]
        yield from own
        yield from self._copies.sealed()

    def _listing(self) -> dict[str, Any]:
        own = {id(buffer) for buffer in self._buffers.values()}
        return {
            "job": self._job,
            "pid": os.getpid(),
            "port": self._port,
            "trainer_lives": self._trainer.is_alive(),
            "held_bytes": self.held_bytes(),
            "snapshots": [
                {**sealed.to_json(), "own": id(buffer) in own}
                for sealed, buffer in self._snapshots()
            ],
        }

    def held_bytes(self) -> int:
        return sum(one.size for one in self._buffers.values()) + self._copies.held_bytes

    def _hand_out(self, link: socket.socket, said: dict[str, Any]) -> None:
        for sealed, buffer in self._snapshots():
            if (sealed.id.token, sealed.id.rank) == (said["token"], said["rank"]):
                told = {"ok": True, "sealed": sealed.to_json(), "bytes": buffer.size}
                send(link, told, sealed.head, (buffer.fd,))
                return
        send(link, {"ok": False})

    def _forget(self, but: str | None) -> None:
        with self._lock:
            for buffer in self._buffers.values():
                if buffer.sealed is not None and buffer.sealed.id.token != but:
                    buffer.sealed = None
        self._copies.forget(but)

    def _adopt(self, link: socket.socket, said: dict[str, Any]) -> bool:
        """Take a new trainer, if the one before is dead; it is handed the buffers."""
        with self._lock:
            if self._trainer.is_alive() or said["job"] != self._job:
                send(link, {"ok": False})
                return False
            self._trainer = _Process(int(said["pid"]))
            self._launcher = _Process(int(said["launcher"]))
            self._alone_since = time.monotonic()
            self._cpu_began_s = time.process_time()
            self._control = link
            self._partner = None
            indices = sorted(self._buffers)
            buffers = [self._buffers[index] for index in indices]
            told = [
                {"index": index, "size": one.size, "sealed": one.sealed and one.sealed.to_json()}
                for index, one in zip(indices, buffers, strict=True)
            ]
            send(link, {"ok": True, "buffers": told}, b"", tuple(one.fd for one in buffers))
        self._obey(link)
        return True


class _Process:
    """Whether another process still runs, though its number may be given away again."""

    def __init__(self, pid: int) -> None:
        self._fd = -1
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._fd = os.pidfd_open(pid)

    def is_alive(self) -> bool:
        return self._fd >= 0 and not select.select([self._fd], [], [], 0)[0]

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _readable(link: socket.socket) -> bool:
    """Whether something has come that was not read yet, be it the end."""
    try:
        return bool(select.select([link], [], [], 0)[0])
    except (OSError, ValueError):
        return False


def main(descriptor: int) -> None:
    """Be the keeper of the trainer at the other end of the socket."""
    for number in _OF_THE_TRAINER:
        signal.signal(number, signal.SIG_IGN)
    lower_priority(_NICE)
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(KEEPER)
    control = socket.socket(fileno=descriptor)
    settings, secret, _ = receive(control)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{settings['name']}-{os.getpid()}")
    listener.listen(64)
    Keeper(settings, secret).live(listener, control)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
