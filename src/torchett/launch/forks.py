"""Ranks by fork: where there is no GPU and ranks have one thread each, better than standbys.

A standby costs its imports, some seconds of a core, at every restart; a template costs them once,
and shares its memory with the ranks. A context on a GPU does not survive a fork (and importing
inductor may touch the driver), nor does a pool of OpenMP threads.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torchett.launch.standby import prepare
from torchett.launch.standbys import PRELOAD, bytes_of, common, receive, send
from torchett.launch.template import serve

_GPUS = ("/dev/nvidiactl", "/dev/kfd")
_PATIENCE_S = 120.0
_PR_SET_CHILD_SUBREAPER = 36


def fit(env: Mapping[str, str]) -> bool:
    """Whether ranks with this environment can be forked here."""
    return (
        sys.platform == "linux"
        and env.get("ETT_STANDBY_FORK") != "0"
        and env.get("OMP_NUM_THREADS") == "1"
        and (env.get("CUDA_VISIBLE_DEVICES") == "" or not any(map(os.path.exists, _GPUS)))
    )


class Forks:
    """A template, and ranks that are forked from it; the interface is that of `Standbys`."""

    def __init__(
        self, env: Mapping[str, str], preload: Sequence[str] = PRELOAD, *, cooks: bool = True
    ) -> None:
        self._env, self._preload = common(env), tuple(preload)
        self._own = {} if cooks else {"ETT_STANDBY_MODEL": "0"}  # of the template, not its ranks
        self._template: Adopted | subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closed = not _adopt_orphans()
        self._warned = False
        self.most_bytes = 0

    def begin(self) -> None:
        """Import here, once for this process and all ranks, and fork the template.

        In a process that has one thread, and the environment that its ranks will have.
        """
        if self._closed:
            return
        before = dict(os.environ)
        for name in self._preload:
            prepare(name)
        os.environ.clear()
        os.environ.update(before)  # inductor sets a variable or two, which ranks are to set anew
        self._control, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            self._control.close()
            os.environ.update(self._own)
            serve(theirs)
        theirs.close()
        self._control.settimeout(_PATIENCE_S)
        self._template = Adopted(pid)

    def fill(self, spare: bool = False) -> None:
        """See to it that there is a template; a spare one has time to rehearse."""
        if self._closed:
            return
        if self._template is None or self._template.poll() is not None:
            self._forget()
            self._control, theirs = socket.socketpair()
            self._control.settimeout(_PATIENCE_S)
            command = [sys.executable, "-uP", "-m", "torchett.launch.template"]
            command += [str(theirs.fileno()), *self._preload]
            env = self._env | self._own
            self._template = subprocess.Popen(command, env=env, pass_fds=(theirs.fileno(),))
            theirs.close()
        if spare and self._preload and self._control is not None:
            try:
                send(self._control, {"rehearse": True})
            except OSError:
                self._forget()

    def take(
        self, argv: Sequence[str], env: Mapping[str, str], stdout: str | None, stderr: str | None
    ) -> "Adopted | None":
        """A rank that now runs `python argv…` with this environment; None if none could be had."""
        if self._control is None or common(env) != self._env:
            return None
        job: dict[str, Any] = {"argv": list(argv), "env": dict(env), "cwd": os.getcwd()}
        try:
            send(self._control, job | {"stdout": stdout, "stderr": stderr})
            said = receive(self._control)
        except (OSError, EOFError, ValueError):
            self._forget()
            return None
        if "pid" in said:
            return Adopted(said["pid"])
        if not self._warned:
            self._warned = True
            print(
                f"torchett: {said['threads']} threads after the imports: ranks are not forked;"
                " ETT_STANDBY_FORK=0 gives them standbys",
                file=sys.stderr,
            )
        return None

    def weigh(self) -> None:
        """Note what the template holds in memory."""
        if self._template is not None and not self.most_bytes:
            self.most_bytes = bytes_of(self._template.pid)

    def close(self) -> None:
        self._closed = True
        self._forget()

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._template is not None:
            self._template.kill()
            self._template.wait()
            self._template = None


class Adopted:
    """A process that became a child of this one: what is needed of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal, if it is over."""
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # someone else waited for it
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


def _adopt_orphans() -> bool:
    """Have the kernel make orphans below this process its children; whether it does."""
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
