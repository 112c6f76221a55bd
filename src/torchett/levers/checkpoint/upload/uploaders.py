"""Who uploads: a process of its own beside each rank, or a thread where one rank has no GPU.

The process maps the arena, so a job costs the trainer a small message. It begins with the first
step (its imports would hold up a start-up that is short of cores), forms a gloo group with the
other ranks' processes, and is begun anew when it dies; ranks move to the next generation of the
group together. What is saved before it is ready, some seconds later, is uploaded by a thread.
"""

import logging
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from torchett.levers.checkpoint.staging.arena import Arena
from torchett.levers.checkpoint.stored.storage import bytes_passed
from torchett.levers.checkpoint.upload.flush import Flusher
from torchett.levers.checkpoint.upload.upload import Job, UploadResult, upload
from torchett.levers.checkpoint.upload.upload_watch import UploadWatch

UPLOAD_PROCESS = "torchett.levers.checkpoint.upload.upload_process"

log = logging.getLogger("torchett")

_LENGTH = struct.Struct("<Q")
_MOST_DEATHS = 100
_MOST_LEFT = 3  # threads that stand still, before no more are begun
_LOOK_S = 1.0
OnDurable = Callable[[str], None]
OnFlushed = Callable[[int, str | None], None]


class Uploader(Protocol):
    """What the checkpointer needs of an uploader."""

    def begin(self) -> None:
        """Get ready: training is under way."""

    def upload(
        self, job: Job, arena: Arena, tensors: list[Any], durable: OnDurable
    ) -> UploadResult:
        """Run the job; returns when it is done, on a thread of the background."""

    def is_ready(self) -> bool:
        """Whether an upload would begin at once; if so on one rank, then on all."""

    def flushed_by(self, timeout_s: float) -> bool:
        """Whether the second tier has everything by then."""

    def close(self) -> None: ...


class ThreadUploader:
    """Uploads on a thread. One that stands still cannot be ended: it is left behind."""

    def __init__(self, on_flushed: OnFlushed, watch: UploadWatch, group: Any = None) -> None:
        self._group, self._watch = group, watch
        self._flusher = Flusher(on_flushed, watch.count)
        self._left: list[threading.Thread] = []

    def begin(self) -> None:
        pass

    def is_ready(self) -> bool:
        return True

    def upload(
        self, job: Job, arena: Arena, tensors: list[Any], durable: OnDurable
    ) -> UploadResult:
        self._left = [thread for thread in self._left if thread.is_alive()]
        if len(self._left) >= (_MOST_LEFT if self._group is None else 1):
            said = f"{len(self._left)} uploads before it stand still"
            return UploadResult(step=job.step, error=said)
        given_up = threading.Event()
        done: list[UploadResult] = []

        def work() -> None:
            try:
                done.append(upload(job, tensors, self._group, durable, given_up))
            except Exception as error:
                said = f"{type(error).__name__}: {error}"[:500]
                done.append(UploadResult(step=job.step, error=said))

        thread = threading.Thread(target=work, name="ett-upload", daemon=True)
        self._watch.begins(job.step)
        thread.start()
        while thread.is_alive():
            thread.join(_LOOK_S)
            if thread.is_alive() and (why := self._watch.gives_up(bytes_passed())) is not None:
                given_up.set()
                self._left.append(thread)
                again = self._group is None
                return UploadResult(step=job.step, error=why, can_retry=again)
        (outcome,) = done
        if outcome.name is not None and job.target.remote is not None:
            self._flusher.flush(job, outcome.name)
        return outcome

    def flushed_by(self, timeout_s: float) -> bool:
        return self._flusher.wait(timeout_s)

    def close(self) -> None:
        pass


class ProcessUploader:
    """Uploads in a process of its own; one that died is begun anew at once."""

    def __init__(
        self,
        on_flushed: OnFlushed,
        on_death: Callable[[str], None],
        watch: UploadWatch,
        address: tuple[str, int] | None,
        rank: int,
        world_size: int,
    ) -> None:
        self._on_flushed, self._on_death, self._watch = on_flushed, on_death, watch
        self._passed = 0  # bytes, as the process says
        self._settings = {"address": address, "rank": rank, "world_size": world_size}
        self._sent_plan: str | None = None
        self._sent_arena: Arena | None = None
        self._reply = threading.Condition()
        self._outcome: UploadResult | None = None
        self._durable: OnDurable | None = None
        self._flushing = False
        self._closed = False
        self.deaths = 0
        self._ready = threading.Event()  # it has imported torch and met the others
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def begin(self) -> None:
        """Begin the process, if there is none; where that fails now, an upload tries again."""
        with self._reply:
            if self._process is not None or self.deaths > _MOST_DEATHS:
                return
            try:
                self._begin()
            except OSError as error:
                log.warning("torchett: the upload process cannot be begun: %s", error)

    def _begin(self) -> None:
        self._ready.clear()
        ours, theirs = socket.socketpair()
        env = {**os.environ, "ETT_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        if sys.pycache_prefix is not None:  # where this process found its bytecode
            env["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
        command = [sys.executable, "-m", UPLOAD_PROCESS, str(theirs.fileno())]
        try:
            process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                env=env,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # signals of the trainer's group are the trainer's
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._process, self._control = process, ours
        self._sent_plan = self._sent_arena = None
        listens = threading.Thread(
            target=self._listen, args=(ours, process), name="ett-uploads", daemon=True
        )
        listens.start()
        send(ours, {**self._settings, "first": self.deaths == 0})

    def is_ready(self) -> bool:
        return self._ready.is_set()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def upload(
        self, job: Job, arena: Arena, tensors: list[Any], durable: OnDurable
    ) -> UploadResult:
        self.begin()
        control = self._control
        if control is None:
            said = f"there is no upload process; it has died {self.deaths} times"
            return UploadResult(step=job.step, error=said, group_is_sound=False)
        if self._sent_plan == job.plan_id and self._sent_arena is arena:
            job = replace(job, plan=None, slots=None)
        with self._reply:
            self._outcome, self._durable = None, durable
        self._watch.begins(job.step)
        try:
            fds = [] if self._sent_arena is arena else [arena.fd]
            send(control, job, fds)
            self._sent_plan, self._sent_arena = job.plan_id, arena
        except OSError as error:
            said = f"upload process: {error}"
            return UploadResult(step=job.step, error=said, group_is_sound=False, can_retry=True)
        why = None
        with self._reply:
            while why is None and self._outcome is None and control is self._control:
                self._reply.wait(_LOOK_S)
                if self._outcome is None:
                    why = self._watch.gives_up(self._passed)
            if self._outcome is not None:
                return self._outcome
            if why is not None:
                self._leave_behind()
        said = why or "the upload process died and was begun anew"
        return UploadResult(step=job.step, error=said, group_is_sound=False, can_retry=True)

    def _leave_behind(self) -> None:
        """Kill the process, which may not die as long as the kernel waits for its storage."""
        process, control = self._process, self._control
        self._process = self._control = None
        self._flushing = False
        self.deaths += 1
        if process is not None and control is not None:
            process.kill()
            control.shutdown(socket.SHUT_RDWR)
        self.begin()

    def _listen(self, control: socket.socket, process: "subprocess.Popen[bytes]") -> None:
        """Hear what the process says, until it is gone."""
        try:
            while True:
                said = receive(control)[0]
                if isinstance(said, UploadResult):
                    with self._reply:
                        if self._process is process:
                            self._outcome = said
                            self._reply.notify_all()
                elif said[0] == "ready":
                    self._ready.set()
                elif said[0] == "passed":
                    self._passed = said[1]
                elif said[0] == "durable" and self._durable is not None:
                    self._durable(said[1])
                elif said[0] == "flushing":
                    self._flushing = True
                elif said[0] == "flushed":
                    self._on_flushed(said[1], said[2])
                elif said[0] == "all flushed":
                    with self._reply:
                        self._flushing = False
                        self._reply.notify_all()
        except (EOFError, OSError, pickle.UnpicklingError):
            pass
        control.close()
        code = process.wait()
        with self._reply:
            if self._closed or self._process is not process:
                return
            self.deaths += 1
            self._process = self._control = None
            self.begin()
            self._flushing = False
            self._reply.notify_all()
        self._on_death(f"the upload process {process.pid} ended with {code}")

    def flushed_by(self, timeout_s: float) -> bool:
        with self._reply:
            return self._reply.wait_for(lambda: not self._flushing, timeout_s)

    def close(self) -> None:
        """End the process; what it has in hand is lost."""
        with self._reply:
            self._closed = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def send(control: socket.socket, message: Any, fds: list[int] | None = None) -> None:
    """Send a message; file descriptors travel with its length."""
    data = pickle.dumps(message)
    head = _LENGTH.pack(len(data))
    if fds:
        socket.send_fds(control, [head], fds)
    else:
        control.sendall(head)
    control.sendall(data)


def receive(control: socket.socket) -> tuple[Any, list[int]]:
    """The next message and its file descriptors; EOFError if the other side is gone."""
    head, fds, _, _ = socket.recv_fds(control, _LENGTH.size, 4)
    while 0 < len(head) < _LENGTH.size:
        more = control.recv(_LENGTH.size - len(head))
        if not more:
            break
        head += more
    if len(head) < _LENGTH.size:
        raise EOFError
    (left,) = _LENGTH.unpack(head)
    data = bytearray()
    while len(data) < left:
        more = control.recv(min(left - len(data), 1 << 20))
        if not more:
            raise EOFError
        data += more
    return pickle.loads(bytes(data)), list(fds)
