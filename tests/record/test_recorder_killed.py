"""A rank killed at any moment leaves a record that knows its last finished step."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from trainers import environment, read, spans_of, steps_in, steps_of, train

from torchett.record.flight.format import SLOTS

KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    "steps", [0, 1, 255, 256, 257, 510, 511, 512, 513, 767, 768, 769, SLOTS - 1, SLOTS]
)
def test_a_kill_after_any_step_loses_none(tmp_path: Path, steps: int) -> None:
    """
    s s s … s ✗       the numbers are those around which the ring wraps or is folded
    """
    script = f"ett.init(job='killed')\nfor i in range({steps}):\n  with ett.step(i): pass\n{KILL}"
    assert train(script, tmp_path).returncode == -signal.SIGKILL
    assert steps_of(tmp_path) == list(range(steps))
    reader = read(tmp_path)
    assert reader.notes == []
    assert reader.ledger().last_step == (steps - 1 if steps else None)


def test_a_kill_from_outside_loses_none_that_was_finished(tmp_path: Path) -> None:
    """
    s 0⏎ s 1⏎ s 2⏎ … ✗        what the trainer had printed, it had recorded
    """
    script = """
import os, torchett as ett
ett.init(job="killed")
for i in ett.steps(iter(int, 1)):
    os.write(1, b".")
"""
    trainer = subprocess.Popen(
        [sys.executable, "-c", script], env=environment(tmp_path), stdout=subprocess.PIPE
    )
    assert trainer.stdout is not None
    printed = 0
    while printed < 5000:
        printed += len(trainer.stdout.read1())
    trainer.kill()
    printed += len(trainer.stdout.read())
    trainer.wait()
    recorded = steps_in(read(tmp_path).history().rows)
    # The step that printed last may have been killed before its end.
    assert recorded in (printed - 1, printed)


def test_a_kill_inside_a_step_does_not_finish_it(tmp_path: Path) -> None:
    """
    s0 s1 s2✗
    """
    script = f"""
for i in range(3):
    with ett.step(i):
        if i == 2: {KILL}
"""
    train(script, tmp_path)
    assert steps_of(tmp_path) == [0, 1]


def test_a_kill_inside_a_span_leaves_it_open(tmp_path: Path) -> None:
    """
    s0 ├ checkpoint_blocked ✗
    """
    script = f"""
with ett.step(0): pass
with ett.blocked("checkpoint_blocked"):
    {KILL}
"""
    train(script, tmp_path)
    reader = read(tmp_path)
    assert spans_of(reader) == ["imports", "checkpoint_blocked"]
    assert reader.ledger().window.live


@pytest.mark.parametrize(
    ("end", "state", "cause"),
    [
        ("pass", "success", None),
        ("raise SystemExit(0)", "success", None),
        ("raise ValueError('bad loss')", "failed", "ValueError: bad loss"),
        ("os._exit(0)", "live", None),
        ("os.kill(os.getpid(), 9)", "live", None),
    ],
)
def test_a_rank_without_a_launcher_says_how_it_ended(
    tmp_path: Path, end: str, state: str, cause: str | None
) -> None:
    """An exit in good order is a success, an error is a failure, silence is neither."""
    train(f"import os\nwith ett.step(0): pass\n{end}", tmp_path)
    (tenure,) = read(tmp_path).ledger().window.tenures
    assert (tenure.state, tenure.attempt.cause) == (state, cause)


def test_the_error_that_ended_a_rank_is_in_its_record(tmp_path: Path) -> None:
    train("ett.init()\nraise ValueError('bad loss ' + 'x' * 9999)", tmp_path)
    (flight,) = read(tmp_path).flights
    assert flight.exit is not None
    assert flight.exit["error"].startswith("ValueError: bad loss xxx")
    assert len(flight.exit["error"]) <= 500


def test_everything_before_init_is_imports(tmp_path: Path) -> None:
    """
    process starts ─ imports ─ ett.init() ─ step 0 ─ exit
    """
    train("import time; time.sleep(0.05); ett.init()\nwith ett.step(0): pass", tmp_path)
    reader = read(tmp_path)
    assert spans_of(reader) == ["imports"]
    assert reader.ledger().accounts["imports"] > 50_000_000


def test_an_account_named_after_the_record_is_closed_is_let_go(tmp_path: Path) -> None:
    """
    exit ─ the record is closed ─ a file of the user's own is opened ─ a new account is named

    The number of the closed file is free again, and the user's file has it now.
    """
    users = tmp_path / "users.bin"
    runs = tmp_path / "runs"
    done = train(
        f"""
import atexit
def late():
    with open({str(users)!r}, "wb", buffering=0) as file:
        file.write(b"mine")
        with ett.stage("x-late"):
            pass
atexit.register(late)
with ett.step(0): pass
""",
        runs,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert users.read_bytes() == b"mine"
    assert os.path.exists(runs)
