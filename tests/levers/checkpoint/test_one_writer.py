"""Two jobs on one folder: the second may read, deletes nothing, and is refused when it saves."""

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from trainer import Training, flip

from torchett.levers.checkpoint import Checkpointer, CheckpointError, checkpointer
from torchett.levers.checkpoint.stored.catalog import entries
from torchett.levers.checkpoint.stored.one_writer import StoreNote
from torchett.levers.checkpoint.stored.storage import Folder, open_storage


@contextmanager
def beside(work: Callable[[Callable[[], None]], None]) -> Iterator[int]:
    """A fork that calls its argument once it is where it is wanted, and stays there."""
    told, tells = os.pipe()
    pid = os.fork()
    if pid == 0:

        def here() -> None:
            os.write(tells, b".")
            signal.pause()

        try:
            work(here)
        except BaseException as error:
            os.write(2, f"beside: {type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os.close(tells)
    try:
        assert select.select([told], [], [], 60)[0], "it does not get there"
        assert os.read(told, 1) == b"."
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(told)


def saves_for_ever(where: Path) -> Callable[[Callable[[], None]], None]:
    """A job with two checkpoints that is in the middle of its third save."""

    def work(here: Callable[[], None]) -> None:
        training = Training()
        ckpt = Checkpointer(where, every=1000, keep=5, snapshot_every=None)
        ckpt.restore(training.state)
        for step in range(2):
            training.step()
            ckpt.save(step, training.state, wait=True)
        write = Folder.write

        @contextmanager
        def stays(self: Folder, path: str) -> Any:
            with write(self, path) as stream:
                here()
                yield stream

        Folder.write = stays  # type: ignore[method-assign]
        ckpt.save(2, training.state, wait=True)

    return work


def test_restoring_beside_a_live_job_deletes_and_renames_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "_LEAVES_S", 0.3)
    with beside(saves_for_ever(tmp_path)) as pid:
        before = sorted(path.name for path in tmp_path.glob("step-*"))
        assert any(".tmp-" in name for name in before)
        flip(tmp_path / "step-00000001" / "__0_0.distcp", 100)
        training = Training()
        ckpt = Checkpointer(tmp_path, every=1)
        assert ckpt.restore(training.state) == 1
        assert sorted(path.name for path in tmp_path.glob("step-*")) == before
        training.step()
        for _ in range(2):
            with pytest.raises(CheckpointError, match=f"process {pid} saves its checkpoints: two"):
                ckpt.step(1, training.state)
        with pytest.raises(CheckpointError, match="cannot save to one folder"):
            ckpt.save(1, training.state)
        ckpt.close()
        assert sorted(path.name for path in tmp_path.glob("step-*")) == before


def test_a_job_that_was_killed_leaves_the_folder_to_the_next(tmp_path: Path) -> None:
    with beside(saves_for_ever(tmp_path)):
        pass
    training = Training()
    ckpt = Checkpointer(tmp_path, every=1, keep=5)
    assert ckpt.restore(training.state) == 2
    assert not list(tmp_path.glob("*.tmp-*"))
    training.step()
    ckpt.step(2, training.state)
    ckpt.close()
    assert [entry.step for entry in entries(open_storage(tmp_path))] == [2, 1, 0]


def test_one_that_only_restored_keeps_nobody_from_saving(tmp_path: Path) -> None:
    def reads(here: Callable[[], None]) -> None:
        Checkpointer(tmp_path, every=1).restore(Training().state)
        here()

    with beside(reads):
        training = Training()
        ckpt = Checkpointer(tmp_path, every=1)
        ckpt.restore(training.state)
        training.step()
        ckpt.step(0, training.state)
        ckpt.close()
    assert [entry.step for entry in entries(open_storage(tmp_path))] == [0]


def test_a_lock_whose_owner_is_silent_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems keep locks of nodes that died."""
    monkeypatch.setattr(checkpointer, "_LEAVES_S", 0.3)
    with beside(saves_for_ever(tmp_path)):
        os.utime(tmp_path / ".writer", (1, 1))
        training = Training()
        ckpt = Checkpointer(tmp_path, every=1, keep=5)
        training.step()
        ckpt.save(2, training.state, wait=True)
        assert ckpt.durable == {"local": 2}
        ckpt.close()


def test_a_note_in_an_object_store_counts_while_it_is_renewed() -> None:
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").store.clear()
    storage: Any = open_storage("memory://notes/job")
    ours = StoreNote(storage)
    assert ours.take() is None
    ours.release()
    storage.replace("writer.json", b'{"writer": "elsewhere process 7", "time": 5.0}')
    other = StoreNote(storage)
    storage.replace("writer.json", b'{"writer": "elsewhere process 7", "time": 6.0}')
    assert other.take() == "elsewhere process 7"  # it was renewed meanwhile
    dead = StoreNote(storage)
    assert dead.take() is None
    dead.release()


def test_restoring_in_the_process_that_saves_deletes_nothing(tmp_path: Path) -> None:
    training = Training()
    with Checkpointer(tmp_path, every=1000) as ckpt:
        ckpt.restore(training.state)
        training.step()
        ckpt.save(0, training.state, wait=True)
        (tmp_path / "step-00000001.tmp-5f3a9c01").mkdir()  # its next save, half written
        other = Checkpointer(tmp_path, every=1000)
        assert other.restore(Training().state) == 1
        other.close()
        assert (tmp_path / "step-00000001.tmp-5f3a9c01").exists()
