"""A notice in real processes: heard whatever they do, and ended as the signal would have it."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

BEGIN = """
import os, signal, sys, threading, time
from torchett.levers.checkpoint.preemption.notice import Notice, install
signal.alarm(60)  # whatever a test forgets is over then
"""


class Trainer:
    """A script in a process of its own, which says `ready` and then is sent signals."""

    def __init__(self, script: str, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", BEGIN + textwrap.dedent(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "ETT_RUNS": "/nonexistent/ett", **env},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.said()

    def sent(self, *numbers: int) -> "Trainer":
        for number in numbers:
            self.process.send_signal(number)
        return self

    def said(self) -> tuple[str, str]:
        """Its output and its errors, once it is over."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        out, err = self.process.stdout.read(), self.process.stderr.read()
        self.process.wait()
        return out, err

    def ended(self) -> tuple[str, int]:
        """What it said, and its exit status."""
        out, err = self.said()
        assert "Traceback" not in err, err
        return out, self.process.returncode


LOOP = """
notice = install()
print("ready")
for step in range(2000):
    time.sleep(0.01)
    if notice.received():
        print("saved for", notice.reason, notice.left_s() > 20)
        notice.leave()
print("over")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_it_saves_and_then_ends_by_the_signal(number: signal.Signals) -> None:
    assert Trainer(LOOP).sent(number).ended() == (f"saved for {number.name} True\n", -number)


def test_without_us_the_status_is_the_same() -> None:
    plain = Trainer("print('ready'); time.sleep(20)")
    assert plain.sent(signal.SIGTERM).ended() == ("", -signal.SIGTERM)


def test_a_second_signal_changes_nothing() -> None:
    out, code = Trainer(LOOP).sent(signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM).ended()
    assert out.count("saved") == 1
    assert code in (-signal.SIGUSR1, -signal.SIGTERM)


HANDLER = """
def mine(number, frame):
    print("mine", number)
"""


@pytest.mark.parametrize("order", ["before", "after"])
def test_the_users_handler_works_whenever_it_was_installed(order: str) -> None:
    own, ours = "signal.signal(signal.SIGTERM, mine)", "notice = install()"
    script = HANDLER + "\n".join([own, ours] if order == "before" else [ours, own])
    out, code = (
        Trainer(
            script
            + """
print("ready")
while not notice.received():
    time.sleep(0.01)
print("saved")
notice.leave()          # the user's business: training goes on
print(notice.received(), notice.deadline_ns)
sys.exit(3)
"""
        )
        .sent(signal.SIGTERM)
        .ended()
    )
    assert sorted(out.split("\n")) == ["", "False None", "mine 15", "saved"]
    assert code == 3


def test_a_users_handler_that_calls_the_one_before_it() -> None:
    script = """
    notice = install()
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda n, f: (print("mine"), before(n, f)))
    print("ready")
    while not notice.received():
        time.sleep(0.01)
    time.sleep(0.1)
    print("saved")
    """
    assert Trainer(script).sent(signal.SIGTERM).ended() == ("mine\nsaved\n", 0)


def test_a_handler_in_c_is_left_alone() -> None:
    script = """
    import faulthandler
    faulthandler.register(signal.SIGUSR1)
    notice = install()
    print("ready")
    time.sleep(0.5)
    print(notice.received())
    """
    trainer = Trainer(script).sent(signal.SIGUSR1)
    out, err = trainer.said()
    assert out == "False\n"
    assert "most recent call first" in err


def test_it_is_heard_while_the_main_thread_is_in_c() -> None:
    """hashlib lets go of the interpreter, but no bytecode of the main thread runs."""
    script = """
    import hashlib
    notice = Notice(signals=[signal.SIGALRM]).listen()
    data = b"x" * (1 << 28)
    heard = []
    notice.when_received(lambda: heard.append(time.monotonic()))
    print("ready")
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    hashlib.sha512(data).digest()
    print(bool(heard) and heard[0] < time.monotonic())
    """
    assert Trainer(script).ended()[0] == "True\n"


def test_the_grace_counts_from_the_signal_even_if_nobody_could_hear_it() -> None:
    """A sort keeps the interpreter: the thread hears of the signal only when it is over."""
    script = """
    notice = Notice(signals=[signal.SIGALRM]).listen()
    numbers = list(range(3_000_000)) * 6
    print("ready")
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    began = time.monotonic()
    numbers.sort()
    kept_s = time.monotonic() - began
    while not notice.received():
        time.sleep(0.001)
    print(kept_s, notice.grace_s - 2 - notice.left_s())
    """
    kept_s, counted_s = map(float, Trainer(script).ended()[0].split())
    assert kept_s > 0.1
    assert counted_s > kept_s - 0.06


def test_a_process_that_never_gets_to_it_is_ended_at_the_deadline() -> None:
    script = """
    import ctypes
    notice = install()
    print("ready")
    while True:               # interrupted by the signal, and back in C at once
        ctypes.CDLL(None).sleep(60)
    """
    began = time.monotonic()
    assert Trainer(script, ETT_GRACE_S="1").sent(signal.SIGTERM).ended() == ("", -signal.SIGTERM)
    assert time.monotonic() - began > 0.8


def test_a_forked_worker_has_its_own_signals() -> None:
    """A loader's worker is ended by SIGTERM: it dies of it, and its parent is not told."""
    script = """
    notice = install()
    worker = os.fork()
    if not worker:
        time.sleep(20)
        os._exit(0)
    time.sleep(0.3)
    os.kill(worker, signal.SIGTERM)
    status = os.waitpid(worker, 0)[1]
    time.sleep(0.2)
    print("ready")
    print(os.waitstatus_to_exitcode(status), notice.received())
    """
    assert Trainer(script).ended() == ("-15 False\n", 0)


def test_workers_stay_until_the_parent_that_was_signalled_with_them_has_saved() -> None:
    """torch's agent signals a rank's whole group: loaders' workers must not die before it."""
    script = """
    os.setsid()
    notice = install()
    worker = os.fork()
    if not worker:
        while True:
            time.sleep(0.01)
    print("ready")
    time.sleep(0.2)
    os.killpg(0, signal.SIGTERM)
    while not notice.received():
        time.sleep(0.01)
    time.sleep(0.5)
    print(worker, os.waitpid(worker, os.WNOHANG))
    notice.leave()
    """
    out, code = Trainer(script).ended()
    worker = int(out.split()[0])
    assert (out, code) == (f"{worker} (0, 0)\n", -signal.SIGTERM)
    for _ in range(200):
        if not _lives(worker):
            break
        time.sleep(0.05)
    assert not _lives(worker)  # with its parent it went


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@needs_torch
def test_a_loader_goes_on_after_its_group_was_signalled() -> None:
    script = """
    from torch.utils.data import DataLoader
    os.setsid()
    notice = install()
    batches = iter(DataLoader(range(10**9), num_workers=1))
    next(batches)
    print("ready")
    os.killpg(0, signal.SIGTERM)
    for batch in batches:
        if notice.received():
            break
    time.sleep(0.5)
    for _ in range(20):
        next(batches)
    print("saved")
    notice.leave()
    """
    assert Trainer(script).ended() == ("saved\n", -signal.SIGTERM)


@needs_torch
def test_a_loader_ends_as_ever() -> None:
    script = """
    from torch.utils.data import DataLoader
    notice = install()
    print("ready")
    print(len(list(DataLoader(range(5), num_workers=1))))
    stopped = iter(DataLoader(range(10**9), num_workers=1))
    next(stopped)
    worker = stopped._workers[0]
    worker.terminate()
    worker.join(20)
    print(worker.exitcode, notice.received())
    os._exit(0)
    """
    assert Trainer(script).ended() == ("5\n0 False\n", 0)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_file_gives_notice_too(tmp_path: Path) -> None:
    file = tmp_path / "preempted"
    script = """
    notice = install()
    print("ready")
    while not notice.received():
        time.sleep(0.01)
    print(notice.reason)
    notice.leave()
    print("goes on")
    """
    trainer = Trainer(script, ETT_PREEMPT_FILE=str(file), ETT_GRACE_S="5")
    file.touch()
    assert trainer.ended() == (f"{file}\ngoes on\n", 0)


def test_a_launchers_file_may_come_after_the_signal(tmp_path: Path) -> None:
    """Schedulers signal every process of a job, the launcher not always first."""
    file = tmp_path / "notice"
    trainer = Trainer(LOOP, ETT_NOTICE=str(file), TORCHELASTIC_RUN_ID="x").sent(signal.SIGTERM)
    time.sleep(0.1)
    file.touch()
    assert trainer.ended() == ("saved for SIGTERM True\n", -signal.SIGTERM)


def test_a_rank_that_an_agent_stops_for_a_peers_sake_waits_for_no_file(tmp_path: Path) -> None:
    told = {"ETT_NOTICE": str(tmp_path / "notice"), "ETT_RESTART": "3"}
    (tmp_path / "notice-stopped-3").touch()
    trainer = Trainer(LOOP, **told)
    began_s = time.monotonic()
    assert trainer.sent(signal.SIGTERM).ended() == ("", -signal.SIGTERM)
    assert time.monotonic() - began_s < 0.4


def test_sigusr1_is_a_notice_under_an_agent_too() -> None:
    trainer = Trainer(LOOP, TORCHELASTIC_RUN_ID="x").sent(signal.SIGUSR1)
    assert trainer.ended() == ("saved for SIGUSR1 True\n", -signal.SIGUSR1)


def test_a_file_that_another_rank_has_told_of_is_no_second_notice(tmp_path: Path) -> None:
    file = tmp_path / "preempted"
    script = """
    notice = install()
    print("ready")
    os.close(os.open(os.environ["ETT_PREEMPT_FILE"], os.O_CREAT))
    notice.leave()  # the ranks have saved, at another's word
    time.sleep(1.5)
    print(notice.received())
    """
    trainer = Trainer(script, ETT_PREEMPT_FILE=str(file), ETT_GRACE_S="5")
    assert trainer.ended() == ("False\n", 0)


def test_another_wakeup_fd_still_gets_its_bytes() -> None:
    script = """
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    notice = install()
    print("ready")
    print(os.read(read, 1), end=" ")
    time.sleep(0.1)
    print(notice.received())
    notice.close()
    print(signal.set_wakeup_fd(-1) == write, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    """
    assert Trainer(script).sent(signal.SIGTERM).ended() == ("b'\\x0f' True\nTrue True\n", 0)


def test_what_fails_on_notice_does_not_harm() -> None:
    script = """
    notice = install()
    notice.when_received(lambda: 1 / 0)
    notice.when_received(lambda: print("heard"))
    print("ready")
    time.sleep(1.0)
    notice.when_received(lambda: print("late, and at once"))
    """
    assert Trainer(script).sent(signal.SIGTERM).ended() == ("heard\nlate, and at once\n", 0)


def test_an_unreadable_grace_is_said_and_the_usual_one_taken() -> None:
    script = "notice = install(); print('ready'); print(notice.grace_s)"
    trainer = Trainer(script, ETT_GRACE_S="soon")
    out, err = trainer.said()
    assert out == "30.0\n"
    assert "ETT_GRACE_S is 'soon'" in err


def test_a_listener_that_is_gone_stands_in_nobodys_way() -> None:
    script = """
    notice = install()
    time.sleep(0.1)
    notice._read = -1
    os.write(notice._write, b"?")              # its thread cannot read that, and ends
    while notice._thread.is_alive():
        time.sleep(0.01)
    print("ready")
    time.sleep(20)
    """
    trainer = Trainer(script).sent(signal.SIGTERM)
    trainer.said()
    assert trainer.process.returncode == -signal.SIGTERM


def test_switched_off_nothing_is_heard() -> None:
    script = """
    notice = install()
    print("ready")
    time.sleep(20)
    """
    assert Trainer(script, ETT_DISABLE="1").sent(signal.SIGTERM).ended() == ("", -signal.SIGTERM)


def test_with_nobody_left_who_saves_a_signal_ends_the_process_at_once() -> None:
    script = """
    from torchett.levers.checkpoint.preemption.notice import release
    for _ in range(2):
        notice = install()
    release()
    release()
    print("ready")
    time.sleep(20)
    print(notice.received())
    """
    assert Trainer(script).sent(signal.SIGTERM).ended() == ("", -signal.SIGTERM)


@needs_torch
def test_a_closed_checkpointer_lets_go_of_signals(tmp_path: Path) -> None:
    script = f"""
    import torch
    from torchett.levers.checkpoint import Checkpointer
    model = torch.nn.Linear(2, 2)
    with Checkpointer({str(tmp_path)!r}, every=1) as ckpt:
        ckpt.step(0, {{"model": model}})
    print("ready")
    time.sleep(20)
    """
    trainer = Trainer(script)
    began = time.monotonic()
    assert trainer.sent(signal.SIGTERM).ended() == ("", -signal.SIGTERM)
    assert time.monotonic() - began < 5.0
