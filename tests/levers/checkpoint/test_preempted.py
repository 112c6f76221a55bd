"""A notice that the process will end: the state is saved at once, and only then it leaves."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer import Training, uninterrupted

from torchett.ledger.rows import STEP
from torchett.levers.checkpoint import Checkpointer


class FakeNotice:
    """As `notice.py` has it, but told by the test."""

    reason = "SIGTERM"
    told = False
    left = 0

    def received(self) -> bool:
        return self.told

    def left_s(self) -> float:
        return 30.0

    def when_received(self, then: Callable[[], None]) -> None:
        pass

    def leave(self, last: Callable[[], None]) -> None:
        self.left += 1
        self.told = False


def test_a_notice_is_answered_by_a_durable_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = FakeNotice()

    def agree(store: Any, rank: int, size: int, step: int, received: bool) -> int | None:
        return step if received else None

    module = SimpleNamespace(install=lambda: notice, agree=agree, release=lambda: None)
    monkeypatch.setitem(sys.modules, "torchett.levers.checkpoint.preemption.notice", module)
    training = Training()
    ckpt = Checkpointer(tmp_path, every=1000)
    ckpt.restore(training.state)
    for step in range(4):
        notice.told = step == 2
        training.step()
        ckpt.step(step, training.state)
        if step == 2:
            assert notice.left == 1
            assert ckpt.preempted
            assert ckpt.durable == {"local": 2}
    ckpt.close(final=False)
    fresh = Training()
    again = Checkpointer(tmp_path, every=1000)
    assert again.restore(fresh.state) == 3
    again.close(final=False)
    assert fresh.digest() == uninterrupted(3).digest()


LOOPS = {
    "an iterator": "for i in ett.steps(range(9)): work(i); ckpt.step(i, t.state)",
    "a with around the call": (
        "for i in range(9):\n    with ett.step(i): work(i); ckpt.step(i, t.state)"
    ),
    "a with before the call": (
        "for i in range(9):\n    with ett.step(i): work(i)\n    ckpt.step(i, t.state)"
    ),
}


@pytest.mark.parametrize("handled", [False, True], ids=["it ends", "it goes on"])
@pytest.mark.parametrize("loop", LOOPS)
def test_the_step_it_leaves_after_is_recorded_once(
    tmp_path: Path, loop: str, handled: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, sys, time; sys.path.insert(0, sys.argv[1])\n"
        "import torch; torch.set_num_threads(1)\n"
        "from trainer import Training\n"
        "import torchett as ett\n"
        + ("signal.signal(signal.SIGTERM, lambda *_: None)\n" if handled else "")
        + "ett.init(job='a'); t = Training()\n"
        f"ckpt = ett.Checkpointer({str(tmp_path / 'c')!r}, every=1000)\n"
        "ckpt.restore(t.state)\n"
        "def work(i):\n"
        "    time.sleep(0.05); t.step()\n"
        "    if i == 5: os.kill(os.getpid(), 15)\n"
        "    while i == 5 and not ckpt._met.preemption._notice.received(): time.sleep(0.01)\n"
        f"{LOOPS[loop]}\n"
        "ckpt.close(final=False)\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "ETT_DISABLE"}
    env["ETT_RUNS"] = str(tmp_path / "runs")
    done = subprocess.run(
        [sys.executable, script, str(Path(__file__).parent)],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == (0 if handled else -15), done.stderr
    from torchett.runs.reader import RunReader

    history = RunReader(tmp_path / "runs" / "a").poll().history()
    assert [c.step for c in history.checkpoints] == [5]
    steps = history.rows.account == STEP
    assert history.rows.index[steps].tolist() == list(range(9 if handled else 6))
