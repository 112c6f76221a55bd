"""One child process, run as if it had been started directly.

Signals sent to the launcher are passed on (those of the terminal reach the child by themselves),
its exit status is kept exactly, and processes it leaves behind are found again, because the
launcher adopts them.
"""

import ctypes
import os
import signal
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a child ended; `told` are the signals that the launcher was sent meanwhile."""

    code: int  # negative: killed by that signal
    told: tuple[signal.Signals, ...] = ()

    @property
    def stopped(self) -> bool:
        """Whether somebody wanted it to end; SIGUSR1 and 2 do not mean that."""
        return not {*self.told} <= {signal.SIGUSR1, signal.SIGUSR2}

    @property
    def cause(self) -> str | None:
        """A word for it: SIGKILL, exit_3, or None for success."""
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
        """How `argv` ended; `hear` is told of each signal before it is passed on.

        A signal for which `hear` returns True goes no further.
        """
        pid = os.posix_spawnp(argv[0], list(argv), dict(env), setsigmask=list(self._mask))
        told: list[signal.Signals] = []
        while True:
            self.tick()
            seen = signal.sigtimedwait({*_PASSED_ON, signal.SIGCHLD}, self.beat_s)
            if seen is not None and seen.si_signo != signal.SIGCHLD:
                told.append(signal.Signals(seen.si_signo))
                dealt_with = hear(told[-1])
                if seen.si_pid and not dealt_with:  # 0: the terminal, which the child hears as well
                    _send(pid, seen.si_signo)
            ended = _reap(pid)
            if ended is not None:
                return Exit(code=ended, told=tuple(told))


def open_streams() -> None:
    """Open what was closed of stdin, stdout and stderr: a log or a socket would take the place."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def _reap(pid: int) -> int | None:
    """The child's exit code if it is over; adopted processes that are over are let go."""
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


def end_leftovers() -> int:
    """Kill the processes that a failed child left behind; how many there were."""
    ended = 0
    while children := _children():
        for pid in children:
            _send(pid, signal.SIGKILL)
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass
            ended += 1
    return ended


def _children() -> list[int]:
    text = "".join(
        path.read_text() for path in Path(f"/proc/{os.getpid()}/task").glob("*/children")
    )
    return [int(word) for word in text.split()]


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
    """The exit code that says the same; a child's signal is suffered, not only reported."""
    if code >= 0:
        return code
    number = -code
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number
