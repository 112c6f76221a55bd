"""A notice that the process will end: the state is saved at once, and only then it leaves."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer import Training, uninterrupted

from torchett.checkpoint import Checkpointer


class FakeNotice:
    """As `notice.py` has it, but told by the test."""

    reason = "SIGTERM"
    told = False
    left = 0

    def received(self) -> bool:
        return self.told

    def left_s(self) -> float:
        return 30.0

    def leave(self) -> None:
        self.left += 1
        self.told = False


def test_a_notice_is_answered_by_a_durable_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = FakeNotice()

    def agree(store: Any, rank: int, size: int, step: int, received: bool) -> int | None:
        return step if received else None

    module = SimpleNamespace(install=lambda: notice, agree=agree)
    monkeypatch.setitem(sys.modules, "torchett.checkpoint.notice", module)
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
