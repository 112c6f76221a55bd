"""A notice that this process is about to lose its hardware, whatever the main thread does.

    SIGTERM, SIGUSR1 ─► the interpreter's C handler ─► wakeup fd ─► a thread ─► received, deadline
    ETT_PREEMPT_FILE appears ───────────────────────────────────────┘

The thread receives a signal while the main thread compiles, evaluates or waits in C++, where a
handler in Python would run too late. The user's own handlers run as before. Without any, the
process ends after its last checkpoint, or at the deadline, by the signal that it was sent, and so
do forked children that were sent it.
"""

import atexit
import ctypes
import logging
import mmap
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from torchett.levers.checkpoint.preemption.agreement import Agreement, Store
from torchett.levers.checkpoint.preemption.launcher_notice import is_announced
from torchett.record import patches
from torchett.record.api import note
from torchett.record.clock import now_ns

log = logging.getLogger("torchett")

GRACE_S = 30.0  # what Kubernetes and torch's agent leave between SIGTERM and SIGKILL
_POLL_S = 0.5
_AGREE_SHARE = 1 / 3  # of the grace: the rest is for saving
_CHILD_S = 0.2  # how long a forked child waits to see whether its parent was told as well
_PR_SET_PDEATHSIG = 1
_LOADER_SIGNALS = "torch.utils.data._utils.signal_handling"

Then = Callable[[], None]


class Notice:
    """Whether the end of this process was announced, and until when it may still save."""

    def __init__(
        self,
        *,
        grace_s: float = GRACE_S,
        signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGUSR1),
        file: Path | None = None,
        announces: Callable[[signal.Signals], bool] = lambda number: True,
    ) -> None:
        self.grace_s = grace_s
        self.reason: str | None = None
        self.deadline_ns: int | None = None
        self._received = False
        self._signals, self._file, self._announces = tuple(signals), file, announces
        self._signal: signal.Signals | None = None
        self._later: list[signal.Signals] = []  # what came while that was being dealt with
        self._ours: set[signal.Signals] = set()  # those that would have ended the process
        self._then: list[Then] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = -1  # the wakeup fd that was there
        self._shown = mmap.mmap(-1, 1)  # 1 while a signal is known: forked children see it
        self._thread = threading.Thread(target=self._watch, name="ett-notice", daemon=True)
        self._closed = self._over = self._guards = self._listens = False
        self._loads = False  # a forked child that became a data loader's worker

    def guard(self) -> "Notice":
        """From now on forked children stay while this process saves; no signal is handled."""
        if not self._guards:
            self._guards = True
            os.register_at_fork(after_in_child=self._forget)
        return self

    def listen(self) -> "Notice":
        """Begin to listen; signals are heard only if this is called in the main thread."""
        self.guard()
        self._listens = True
        self._thread.start()
        if threading.current_thread() is threading.main_thread():
            self._hook()
            atexit.register(self.close)  # an interpreter that exits handles nothing
        else:
            log.warning("torchett: signals are not heard: listen() outside the main thread")
        return self

    def received(self) -> bool:
        """Whether the end was announced and nobody has dealt with it yet."""
        return self._received

    def left_s(self) -> float:
        """Seconds until the deadline; the whole grace before a notice."""
        if self.deadline_ns is None:
            return self.grace_s
        return max(0.0, (self.deadline_ns - now_ns()) / 1e9)

    def when_received(self, then: Then) -> None:
        """Call `then` from the listening thread once notice is received (at once if it was)."""
        with self._lock:
            self._then.append(then)
            if not self._received:
                return
        _call(then)

    def leave(self, last: Then = lambda: None) -> None:
        """End as the signal would have ended this process, after calling `last`.

        Returns where the signal would not have ended it: the user handles it, or a file gave
        notice. Training goes on, and the next notice is awaited.
        """
        told = [] if self._signal is None else [self._signal, *self._later]
        for number in told:
            if number in self._ours and self._still_ours(number):
                _call(last)
                _flush()
                _die(number)
        with self._lock:
            self._later.clear()
            self.reason = self.deadline_ns = self._signal = None
            self._received = self._over = False
            self._shown[0] = False
            if self._file is not None and os.path.exists(self._file):
                self._file = None  # another rank had seen it sooner: it was the same notice

    def close(self) -> None:
        """Stop listening and put back what was there; in the main thread."""
        if self._closed:
            return
        self._closed = True
        self._unhook(self._before)

    # Behind it -------------------------------------------------------------------------------

    def _hook(self) -> None:
        for number in filter(_would_end, self._signals):
            signal.signal(number, self._handle)
            self._ours.add(number)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def _unhook(self, wakeup_fd: int) -> None:
        for number in self._ours:
            if self._still_ours(number):
                signal.signal(number, signal.SIG_DFL)
        self._ours.clear()
        found = signal.set_wakeup_fd(wakeup_fd)
        if found not in (self._write, -1):  # someone else's by now
            signal.set_wakeup_fd(found)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, between two bytecodes: no locks here."""
        if not self._thread.is_alive():  # nobody would hear of it: do not stand in its way
            _die(signal.Signals(number))
        try:
            os.write(self._write, bytes([number]))  # in case someone else has the wakeup fd now
        except OSError:
            pass

    def _still_ours(self, number: signal.Signals) -> bool:
        return signal.getsignal(number) == self._handle

    def _watch(self) -> None:
        """Hear signals and the file; end the process when its time is up."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        quiet_ns = now_ns()  # until then nothing had come
        while not self._closed and os.getpid() == self._pid:
            began_ns = now_ns()
            told = os.read(self._read, 64) if poll.poll(_POLL_S * 1e3) else b""
            if self._before >= 0:
                _pass_on(self._before, told)
            for number in told:
                if number in self._signals and not self._announces(signal.Signals(number)):
                    self._end_by(signal.Signals(number))
                elif number in self._signals:
                    # Not now: this thread may have waited for the interpreter since it came.
                    self._take(signal.Signals(number).name, quiet_ns, signal.Signals(number))
            quiet_ns = began_ns if told else began_ns + int(_POLL_S * 1e9)
            file = self._file
            if file is not None and not self._received and os.path.exists(file):
                self._file = None
                self._take(str(file), quiet_ns, None)
            if self.deadline_ns is not None and now_ns() >= self.deadline_ns and not self._over:
                self._time_is_up()

    def _take(self, reason: str, since_ns: int, number: signal.Signals | None) -> None:
        with self._lock:
            if self._received and (self._signal is not None or number is None):
                self._later += [] if number is None else [number]
                return
            self._signal = number
            self._shown[0] = number is not None
            if not self._received:
                spare_s = min(2.0, self.grace_s / 10)
                self.deadline_ns = since_ns + int((self.grace_s - spare_s) * 1e9)
                self.reason = reason
            self._received = True
            waiting = [*self._then]
        for then in waiting:
            _call(then)

    def _time_is_up(self) -> None:
        """The loop did not get to the end of it: go as the signal would have it."""
        number, self._over = self._signal, True
        if number is not None:
            self._end_by(number, f"torchett: {self.grace_s} s after {number.name}: ended")

    def _end_by(self, number: signal.Signals, said: str | None = None) -> None:
        """Die of a signal that nobody else handles."""
        if number in self._ours and self._still_ours(number):
            if said is not None:
                log.warning("%s", said)
            _die(number)

    def _forget(self) -> None:
        """In a forked child, a loader's worker for one: it has nobody to tell."""
        if self._closed:
            return
        self._closed = True
        ours = {number for number in self._ours if self._still_ours(number)}
        if self._listens:
            self._unhook(-1)
        else:  # forked before the parent had anything to save
            ours.update(filter(_would_end, self._signals))

        def hook(numbers: set[signal.Signals]) -> None:
            for number in numbers:
                signal.signal(number, self._handle_in_child)

        hook(ours)
        # In a loader's worker torch puts its own handlers in the place of the user's.
        torchs = {*ours, *self._signals}

        def make(theirs: Callable[[], None]) -> Callable[[], None]:
            def both() -> None:
                theirs()
                hook(torchs)
                self._loads = True

            return both

        if _LOADER_SIGNALS in sys.modules:  # torch is about to give its worker a handler in C
            patches.install(f"{_LOADER_SIGNALS}:_set_worker_signal_handlers", make)

    def _handle_in_child(self, number: int, frame: FrameType | None) -> None:
        """Die of a signal of one's own; stay for as long as a parent that was sent it as well.

        Agents and schedulers signal whole groups of processes. A loader whose workers are gone
        raises in the middle of the step that the parent would like to end. A worker that its
        loader ends by SIGTERM leaves with 0, as torch's own handler has it: the parent's SIGCHLD
        handler raises at any other status.
        """
        until_ns = now_ns() + int(_CHILD_S * 1e9)
        while not self._shown[0] and now_ns() < until_ns:
            time.sleep(0.005)
        if self._shown[0]:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if not self._shown[0] or os.getppid() != self._pid:
            if self._loads and number == signal.SIGTERM and os.getppid() == self._pid:
                os._exit(0)
            _die(signal.Signals(number))


def _call(then: Then) -> None:
    try:
        then()
    except Exception as error:
        log.warning("torchett: %s failed on notice: %s", getattr(then, "__name__", then), error)


def _pass_on(fd: int, told: bytes) -> None:
    """Wake those whose place at the wakeup fd was taken."""
    try:
        if told:
            os.write(fd, told)
    except OSError:
        pass


def _would_end(number: signal.Signals) -> bool:
    """Whether this process would die of the signal."""
    return signal.getsignal(number) == signal.SIG_DFL and not _caught_elsewhere(number)


def _caught_elsewhere(number: int) -> bool:
    """Whether C code (faulthandler, a library) has a handler that Python does not know of."""
    try:
        status = Path("/proc/self/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    except (OSError, ValueError, IndexError):
        return False
    return bool(caught >> (number - 1) & 1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass


def _die(number: signal.Signals) -> None:
    """End by this signal, from whichever thread; nothing here may wait for another one."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(number, signal.SIG_DFL)
    else:  # the interpreter lets only the main thread do this, and that may be stuck
        ctypes.CDLL(None).signal(int(number), ctypes.c_void_p(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    time.sleep(1.0)
    os._exit(128 + number)


# One for the process ---------------------------------------------------------------------------

_installed: Notice | None = None
_users = 0  # of it; with none left a signal ends the process as ever
_agreements: dict[int, tuple[Store, Agreement]] = {}


def prepare() -> Notice:
    """This process's notice; what ETT_GRACE_S and ETT_PREEMPT_FILE say counts.

    It handles nothing before `install()`, but loaders' workers that are forked meanwhile know it.
    """
    global _installed, _users
    if _installed is None or _installed._pid != os.getpid():
        _users = 0
        file = os.environ.get("ETT_PREEMPT_FILE") or os.environ.get("ETT_NOTICE")
        path = Path(file) if file else None
        _installed = Notice(grace_s=_grace_s(), file=path, announces=_announces)
        if os.environ.get("ETT_DISABLE") != "1":
            _installed.guard()
    return _installed


def install() -> Notice:
    """This process's notice, listening; call `release()` when there is nothing left to save."""
    global _users
    notice = prepare()
    if not notice._listens and os.environ.get("ETT_DISABLE") != "1":
        notice.listen()
        note("saves_on_notice", {"grace_s": notice.grace_s})
    _users += 1
    return notice


def release() -> None:
    """One user of the notice has closed."""
    global _users
    _users -= 1


def _announces(number: signal.Signals) -> bool:
    """Whether this signal says that the hardware goes away.

    An elastic agent stops the peers of a failed rank by SIGTERM, too: then there is nothing left to
    agree on. `ett run` tells the two apart by a file; under a bare torchrun only ETT_GRACE_S makes
    SIGTERM a notice. No agent stops a rank by SIGUSR1. Without anything to save it is no notice.
    """
    if not _users or number != signal.SIGTERM:
        return bool(_users)
    notice = os.environ.get("ETT_NOTICE")
    if notice:
        return is_announced(notice)
    return "TORCHELASTIC_RUN_ID" not in os.environ or "ETT_GRACE_S" in os.environ


def agree(store: Store, rank: int, world_size: int, step: int, received: bool) -> int | None:
    """The step after which all ranks save; None if none of them was told to end.

    Called by every rank after each step: save if the answer is this step, go on if it is a later
    one. It waits only once a notice is known, and for a rank that is dead at most a third of the
    grace.
    """
    known = _agreements.get(id(store))
    if known is None:
        grace_s = _installed.grace_s if _installed is not None else _grace_s()
        agreement = Agreement(store, rank, world_size, budget_s=grace_s * _AGREE_SHARE)
        if _installed is not None:
            _installed.when_received(agreement.tell)
        known = _agreements[id(store)] = store, agreement
    return known[1].at_boundary(step, received)


def _grace_s() -> float:
    text = os.environ.get("ETT_GRACE_S", "")
    try:
        return float(text) if text and float(text) > 0 else GRACE_S
    except ValueError:
        log.warning("torchett: ETT_GRACE_S is '%s': %g s are taken", text, GRACE_S)
        return GRACE_S
