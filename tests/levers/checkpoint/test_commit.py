"""A kill between any two steps of a commit leaves the old checkpoint or the new one, whole."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from trainer import Training, in_child, uninterrupted

from torchett.levers.checkpoint import Checkpointer
from torchett.levers.checkpoint.stored.catalog import entries, latest, verify
from torchett.levers.checkpoint.stored.storage import Folder, open_storage
from torchett.levers.checkpoint.upload import commit

POINTS = (
    "a file half written",
    "a file written",
    "files written",
    "manifest written",
    "folder synced",
    "renamed",
    "durable",
    "latest moved",
    "retained",
)
COMMITTED = POINTS[5:]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_at(point: str, where: Path) -> None:
    """Save step 2, safely, then step 4, and be killed at that point of it."""
    training = Training()
    ckpt = Checkpointer(where, every=1000, keep=1, snapshot_every=None)
    ckpt.restore(training.state)
    for step in range(5):
        training.step()
        ckpt.step(step, training.state)
        if step == 2:
            ckpt.save(step, training.state, wait=True)
    reached, write = commit.reached, Folder.write

    def reach(name: str) -> None:
        reached(name)
        if name == point:
            die()

    class Half:
        """Dies in the middle of its first long write."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def write(self, data: Any) -> int:
            if point == "a file half written" and len(data) > 500:
                self._stream.write(data[: len(data) // 2])
                die()
            return int(self._stream.write(data))

    from contextlib import contextmanager

    @contextmanager
    def writes(self: Folder, path: str) -> Any:
        with write(self, path) as stream:
            yield Half(stream)
        if point == "a file written" and path.endswith(".distcp"):
            die()

    commit.reached = reach
    Folder.write = writes  # type: ignore[method-assign]
    ckpt.save(4, training.state)
    ckpt.fence()
    threading.Event().wait(30)


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point(tmp_path: Path, point: str) -> None:
    assert in_child(lambda: dies_at(point, tmp_path)) == -signal.SIGKILL
    named = latest(open_storage(tmp_path))
    assert named in ("step-00000002", "step-00000004")
    found = entries(open_storage(tmp_path))
    assert named in [entry.name for entry in found]
    assert all(verify(entry) == [] for entry in found)
    training = Training()
    ckpt = Checkpointer(tmp_path, every=1000, keep=1)
    first = ckpt.restore(training.state)
    assert first == (5 if point in COMMITTED else 3)
    assert training.digest() == uninterrupted(first).digest()
    assert not list(tmp_path.glob("*.tmp-*"))  # swept
    training.step()
    ckpt.save(first, training.state, wait=True)
    ckpt.close(final=False)
    assert [entry.step for entry in entries(open_storage(tmp_path))] == [first]


def test_the_same_step_saved_again_is_a_generation_of_its_own(tmp_path: Path) -> None:
    training = Training()
    ckpt = Checkpointer(tmp_path, every=1000, keep=5)
    ckpt.restore(training.state)
    for _ in range(2):
        training.step()
        ckpt.save(7, training.state, wait=True)
    ckpt.close(final=False)
    names = [entry.name for entry in entries(open_storage(tmp_path))]
    assert names == ["step-00000007.1", "step-00000007"]
    fresh = Training()
    again = Checkpointer(tmp_path, every=1000)
    assert again.restore(fresh.state) == 8
    again.close(final=False)
    assert fresh.digest() == uninterrupted(2).digest()
