"""One child process, run as if the shell had started it.

Signals sent to the launcher are passed on (those of the terminal reach the child by themselves),
its exit status is kept exactly, and processes it leaves behind are found again, because the
launcher adopts them.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = 10.0  # for processes that were killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a child ended; `received` are the signals that the launcher got meanwhile."""

    code: int  # negative: killed by that signal
    received: tuple[signal.Signals, ...] = ()

    @property
    def stopped(self) -> bool:
        """Whether a signal asked it to end; SIGUSR1 and SIGUSR2 alone do not."""
        return self.by_warning or not {*self.received} <= {signal.SIGUSR1, signal.SIGUSR2}

    @property
    def by_warning(self) -> bool:
        """Whether it exited because of a scheduler's warning (SIGUSR1)."""
        ends = self.code == -signal.SIGUSR1 or signal.SIGTERM in self.received
        return signal.SIGUSR1 in self.received and ends

    @property
    def cause(self) -> str | None:
        """The cause: SIGKILL, exit_3, or None for success."""
        if self.code == 0:
            return None
        return signal.Signals(-self.code).name if self.code < 0 else f"exit_{self.code}"


Hear = Callable[[signal.Signals], bool]


def _nothing(number: signal.Signals) -> bool:
    return False


@dataclass(slots=True)
class Supervisor:
    """Runs children one after the other; `tick` is called at least every `beat_s` seconds."""

    tick: Callable[[], None]
    beat_s: float = 1.0
    _mask: set[signal.Signals] = field(init=False)

    def __post_init__(self) -> None:
        # Blocked for good: signals are taken by sigtimedwait, never by a handler.
        old = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
        self._mask = {signal.Signals(number) for number in old}
        _adopt_orphans()

    def run(self, argv: Sequence[str], env: Mapping[str, str], hear: Hear = _nothing) -> Exit:
        """How `argv` ended; `hear` receives each signal before it is passed on.

        A signal for which `hear` returns True goes no further.
        """
        pid = os.posix_spawnp(argv[0], list(argv), dict(env), setsigmask=list(self._mask))
        received: list[signal.Signals] = []
        while True:
            self.tick()
            seen = signal.sigtimedwait({*_PASSED_ON, signal.SIGCHLD}, self.beat_s)
            if seen is not None and seen.si_signo != signal.SIGCHLD:
                received.append(signal.Signals(seen.si_signo))
                dealt_with = hear(received[-1])
                if seen.si_pid and not dealt_with:  # 0: the terminal, which signals the child, too
                    _send(pid, seen.si_signo)
            ended = _reap(pid)
            if ended is not None:
                return Exit(code=ended, received=tuple(received))

    def wait(self, seconds: float, hear: Hear = _nothing) -> bool:
        """Wait for that time; False as soon as a signal ends the job."""
        over = time.monotonic() + seconds
        while (left := over - time.monotonic()) > 0:
            self.tick()
            seen = signal.sigtimedwait({*_PASSED_ON}, min(left, self.beat_s))
            if seen is not None:
                number = signal.Signals(seen.si_signo)
                hear(number)
                if Exit(code=0, received=(number,)).stopped:
                    return False
        return True


def open_streams() -> None:
    """Open stdin, stdout and stderr if closed: a log or a socket would get their number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def _reap(pid: int) -> int | None:
    """The child's exit code if it has exited; other exited children are reaped."""
    code = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if ended == 0:
            return code
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)


def end_leftovers(patience_s: float = _PATIENCE_S, *, but: str | None = None) -> int:
    """Kill the processes that a failed child left behind, but those of a name; how many ended.

    A process that waits inside the kernel (for a disk that hangs) is left behind, with one line.
    """
    ended, deadline = 0, time.monotonic() + patience_s
    while children := _children_but(but):
        for pid in children:
            _send(pid, signal.SIGKILL)
        for pid in children:
            ended += _ends_by(pid, deadline)
        if time.monotonic() >= deadline and (left := _children_but(but)):
            pids = ", ".join(map(str, left))
            print(f"ett: killed, but not ended in {patience_s:g} s: pid {pids}", file=sys.stderr)
            break
    return ended


def _ends_by(pid: int, deadline: float) -> bool:
    """Whether a killed process is over by then; it is reaped."""
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)


def _children() -> list[int]:
    """This process's children: the kernel lists them under the thread that made them."""
    found: list[int] = []
    for path in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            pass  # the thread has ended, and another one has its children
    return found


def _children_but(name: str | None) -> list[int]:
    return [pid for pid in _children() if name is None or _name_of(pid) != name]


def _name_of(pid: int) -> str:
    """The name of a process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _adopt_orphans() -> None:
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # not Linux: what a killed child leaves behind stays behind


def leave_like(code: int) -> int:
    """End this process by the child's signal, or return the child's exit code."""
    if code >= 0:
        return code
    number = -code
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number
