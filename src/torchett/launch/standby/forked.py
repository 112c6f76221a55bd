"""Forked standbys: one process imports torch once, and is forked for every rank.

    agent      imports ─┬────────── job ─────────────── pid: adopts it, waits as for its own child
    template            └─ waits ───┬─ rehearses once the ranks train, waits
    rank                            └─ runs the script as __main__, 0.02 s later

A spawned standby costs its imports, some seconds of a core, at every restart. The template costs
them once and shares its memory with the ranks. A rank is forked twice: the process in between exits
at once, and the agent, a subreaper, becomes the rank's parent. A fork copies one thread only, so a
template that has more than one says so and is not forked.
"""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from torchett.launch.standby.job import common, receive, send
from torchett.launch.standby.pool import differs, say_once
from torchett.launch.standby.rank_process import NO_JOB, has_message, prepare, read_bytecode, run
from torchett.launch.standby.spawned import bytes_of

_PATIENCE_S = 120.0
_PR_SET_CHILD_SUBREAPER = 36


class ForkedStandbys:
    """Keeps a template and forks ranks from it; see StandbyPool."""

    def __init__(
        self, env: Mapping[str, str], preload: Sequence[str] = (), rehearsal: Sequence[str] = ()
    ) -> None:
        self._env, self._preload, self._rehearsal = common(env), tuple(preload), tuple(rehearsal)
        self._template: Adopted | subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closed = not _become_subreaper()
        self.most_bytes = 0

    def import_and_fork(self) -> None:
        """Import once for this process and all ranks, and fork the template from it.

        Only in a process that has one thread.
        """
        if self._closed:
            return
        before = dict(os.environ)
        os.environ.update(self._env)
        for name in self._preload:
            prepare(name)
        os.environ.clear()
        os.environ.update(self._env)  # inductor sets variables, which ranks must set again
        self._control, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            self._control.close()
            serve(theirs)
        os.environ.clear()
        os.environ.update(before)
        theirs.close()
        self._control.settimeout(_PATIENCE_S)
        self._template = Adopted(pid)

    def fill(self, spare: bool = False) -> None:
        """Start a template if there is none; a spare one has time to rehearse."""
        if self._closed:
            return
        if self._template is None or self._template.poll() is not None:
            self._end_template()
            self._control, theirs = socket.socketpair()
            self._control.settimeout(_PATIENCE_S)
            command = [sys.executable, "-uP", "-m", "torchett.launch.standby.forked"]
            command += [str(theirs.fileno()), *self._preload]
            self._template = subprocess.Popen(command, env=self._env, pass_fds=(theirs.fileno(),))
            theirs.close()
        if spare and self._rehearsal and self._control is not None:
            try:
                send(self._control, {"rehearse": self._rehearsal})
            except OSError:
                self._end_template()

    def take(self, job: Mapping[str, Any]) -> "Adopted | None":
        """A forked process that now runs this rank; None if no fork was possible."""
        if self._control is None or differs(common(job["env"]), self._env):
            return None
        try:
            send(self._control, job)
            answer = receive(self._control)
        except (OSError, EOFError, ValueError):
            self._end_template()
            return None
        if "pid" in answer:
            return Adopted(answer["pid"])
        say_once(
            f"{answer['threads']} threads after the imports, so they cannot be forked;"
            " ETT_STANDBY_FORK=0 spawns standbys"
        )
        return None

    def weigh(self) -> None:
        if self._template is not None and not self.most_bytes:
            self.most_bytes = bytes_of(self._template.pid)

    def close(self) -> None:
        self._closed = True
        self._end_template()

    def _end_template(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._template is not None:
            self._template.kill()
            self._template.wait()
            self._template = None


class Adopted:
    """A process that was reparented to this one, with the needed part of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # something else waited for it
                self.returncode = -signal.SIGKILL
            else:
                if ended:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _become_subreaper() -> bool:
    """Become a subreaper: orphans below this process become its children; returns success."""
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def main() -> NoReturn:
    """A template in an interpreter of its own: an agent with threads cannot be forked."""
    read_bytecode()
    for name in sys.argv[2:]:
        prepare(name)
    serve(socket.socket(fileno=int(sys.argv[1])))


def serve(control: socket.socket) -> NoReturn:
    """Fork a rank for each job the agent sends; rehearse in between on request."""
    rehearsal: list[str] = []
    rehearsed = False
    try:
        while True:
            if rehearsal and not has_message(control):
                prepare(rehearsal.pop(0))
                rehearsed = not rehearsal
                continue
            message = receive(control)
            if "rehearse" in message:
                rehearsal = [] if rehearsed else message["rehearse"]
                continue
            rehearsal = []  # not while a rank starts: the agent sends a new request later
            threads = len(os.listdir("/proc/self/task"))
            if threads > 1:
                send(control, {"threads": threads})
            else:
                send(control, {"pid": _fork(control, message)})
    except (OSError, EOFError, ValueError):
        os._exit(NO_JOB)  # the agent is gone


def _fork(control: socket.socket, job: dict[str, Any]) -> int:
    """The pid of a process that runs the job and whose parent has exited."""
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            os.close(read)
            os.close(write)
            control.close()
            os.setsid()
            _reseed()
            run(job)
        os.write(write, str(pid).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(between, 0)
    with os.fdopen(read) as answer:
        return int(answer.read())


def _reseed() -> None:
    """Give this process its own random numbers, as every new interpreter has."""
    random.seed()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


if __name__ == "__main__":
    main()
