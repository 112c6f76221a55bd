"""Each fault of stock DCP: shown to be there, and closed here."""

import errno
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from trainer import Training, flip, uninterrupted

from torchett.levers.checkpoint import Checkpointer
from torchett.levers.checkpoint.stored.catalog import entries, latest
from torchett.levers.checkpoint.stored.storage import Folder, open_storage
from torchett.levers.checkpoint.upload import writer


def wait(ckpt: Checkpointer) -> None:
    assert ckpt._met is not None
    ckpt.fence()
    assert ckpt._met.saves.wait(60)


def restored(where: Path) -> tuple[int, Training]:
    training = Training()
    ckpt = Checkpointer(where, every=1000, snapshot_every=None)
    first = ckpt.restore(training.state)
    ckpt.close(final=False)
    return first, training


def failing(monkeypatch: pytest.MonkeyPatch, fails: Any) -> None:
    """Let writes of a Folder fail where `fails(path)` says so."""
    write = Folder.write

    @contextmanager
    def broken(self: Folder, path: str) -> Any:
        with write(self, path) as stream:
            yield stream
            if fails(path):
                raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Folder, "write", broken)


def test_a_writing_thread_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Stock: the save succeeds, .metadata is published, and it cannot be loaded.
    state = {"a": torch.ones(64), "b": torch.zeros(64)}
    stock = FileSystemWriter(tmp_path / "stock", thread_count=2)
    create, started = stock.fs.create_stream, threading.Barrier(2)

    @contextmanager
    def broken(path: Any, mode: str) -> Any:
        with create(path, mode) as stream:
            if str(path).endswith(".distcp"):
                started.wait(10)
                if threading.current_thread() is not threading.main_thread():
                    raise OSError(errno.ENOSPC, "No space left on device")
            yield stream

    monkeypatch.setattr(stock.fs, "create_stream", broken)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    dcp.save(state, storage_writer=stock)
    assert (tmp_path / "stock" / ".metadata").exists()
    with pytest.raises(BaseException, match=r"CheckpointException|storage_data|MetadataIndex"):
        dcp.load({"a": torch.ones(64), "b": torch.ones(64)}, checkpoint_id=tmp_path / "stock")

    # Here: the save fails, says so, and the one before is the newest.
    monkeypatch.setattr(writer, "_PER_THREAD", 1)
    monkeypatch.setattr(writer.os, "cpu_count", lambda: 4)
    training = Training()
    ckpt = Checkpointer(tmp_path / "ours", every=1000, snapshot_every=None)
    training.run(ckpt, 2)
    ckpt.save(1, training.state, wait=True)
    failing(monkeypatch, lambda path: path.endswith("_1.distcp"))
    training.step()
    ckpt.save(2, training.state, wait=True)
    outcome = ckpt._met.saves.current.outcome  # type: ignore[union-attr]
    assert outcome is not None
    assert "No space left" in str(outcome.error)
    ckpt.close(final=False)
    monkeypatch.undo()
    assert latest(open_storage(tmp_path / "ours")) == "step-00000001"
    assert not list((tmp_path / "ours").glob("*.tmp-*"))
    assert restored(tmp_path / "ours")[0] == 2


def test_a_kept_buffer_is_not_filled_again_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stock: a stager that keeps its buffers hands the same ones out again.
    from torch.distributed.checkpoint._state_dict_stager import StateDictStager

    stager = StateDictStager()
    weight = torch.ones(8)
    first = stager.stage({"w": weight})
    weight.add_(1)
    stager.stage({"w": weight})
    assert first["w"].equal(torch.full((8,), 2.0))  # "checkpoint 1" holds checkpoint 2

    # Here: a save that is due while an upload reads the buffer comes a step later.
    training = Training()
    ckpt = Checkpointer(tmp_path, every=1, keep=10, snapshot_every=None)
    go = threading.Event()
    write = Folder.write

    @contextmanager
    def slow(self: Folder, path: str) -> Any:
        go.wait(60)
        with write(self, path) as stream:
            yield stream

    monkeypatch.setattr(Folder, "write", slow)
    training.run(ckpt, 3)
    assert ckpt._met is not None
    assert ckpt._met.saves.current is not None
    assert ckpt._met.saves.current.job.step == 0
    go.set()
    wait(ckpt)
    ckpt.close()
    assert [entry.step for entry in entries(open_storage(tmp_path))] == [2, 0]
    (tmp_path / "step-00000002").rename(tmp_path / "aside")
    first_step, early = restored(tmp_path)
    assert first_step == 1
    assert early.digest() == uninterrupted(1).digest()


def test_a_save_killed_midway_leaves_no_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stock: the second save into a folder dies midway; a load succeeds, with tensors of both.
    def save(value: float, dies: bool) -> None:
        stock = FileSystemWriter(tmp_path / "stock", single_file_per_rank=False)
        create = stock.fs.create_stream

        @contextmanager
        def dying(path: Any, mode: str) -> Any:
            if dies and str(path).endswith("__0_1.distcp"):
                raise OSError("killed")
            with create(path, mode) as stream:
                yield stream

        stock.fs.create_stream = dying
        dcp.save({"a": torch.full((4,), value), "b": torch.full((4,), value)}, storage_writer=stock)

    save(1.0, dies=False)
    with pytest.raises(BaseException, match="killed"):
        save(2.0, dies=True)
    state = {"a": torch.zeros(4), "b": torch.zeros(4)}
    dcp.load(state, checkpoint_id=tmp_path / "stock")
    assert state["a"][0] != state["b"][0]

    # Here: the same step again, dead midway: what was there is whole.
    training = Training()
    ckpt = Checkpointer(tmp_path / "ours", every=1000, snapshot_every=None)
    training.run(ckpt, 2)
    ckpt.save(1, training.state, wait=True)
    saved = training.digest()
    training.step()
    failing(monkeypatch, lambda path: path.endswith(".metadata"))
    ckpt.save(1, training.state, wait=True)
    ckpt.close(final=False)
    monkeypatch.undo()
    assert restored(tmp_path / "ours")[1].digest() == saved


def test_a_flipped_bit_is_not_loaded(tmp_path: Path) -> None:
    # Stock: the load succeeds, with another number.
    dcp.save({"a": torch.ones(64)}, checkpoint_id=tmp_path / "stock")
    path = tmp_path / "stock" / "__0_0.distcp"
    flip(path, path.read_bytes().index(torch.ones(64).numpy().tobytes()) + 2, 6)
    state = {"a": torch.zeros(64)}
    dcp.load(state, checkpoint_id=tmp_path / "stock")
    assert not state["a"].equal(torch.ones(64))

    training = Training()
    ckpt = Checkpointer(tmp_path / "ours", every=1, snapshot_every=None)
    training.run(ckpt, 2, at=lambda step: ckpt.wait() and None)
    ckpt.close()
    path = tmp_path / "ours" / "step-00000001" / "__0_0.distcp"
    flip(path, path.stat().st_size // 2)
    assert restored(tmp_path / "ours")[0] == 1


def test_an_error_of_the_background_does_not_end_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stock: what a failed save raises passes by `except Exception` and ends the job.
    stock = FileSystemWriter(tmp_path / "stock")

    def fails(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stock, "write_data", fails)
    with pytest.raises(BaseException, match="No space left") as told:
        dcp.save({"a": torch.ones(4)}, storage_writer=stock)
    assert not isinstance(told.value, Exception)

    failing(monkeypatch, lambda path: True)
    training = Training()
    ckpt = Checkpointer(tmp_path / "ours", every=2, snapshot_every=None)
    training.run(ckpt, 5)
    wait(ckpt)
    _until(lambda: bool(ckpt.errors))
    assert "No space left" in ckpt.errors[0]
    monkeypatch.undo()
    ckpt.close()  # there is space again: the last state is saved
    assert restored(tmp_path / "ours")[0] == 5

    failing(monkeypatch, lambda path: True)
    strict = Checkpointer(tmp_path / "strict", every=1, on_error="raise", snapshot_every=None)
    training = Training()
    training.run(strict, 1)
    wait(strict)
    _until(lambda: bool(strict.errors))
    with pytest.raises(Exception, match="No space left"):
        strict.step(1, training.state)
    strict.close(final=False)


def test_an_upload_process_that_is_killed_is_begun_anew(tmp_path: Path) -> None:
    # Stock: every later save fails with a broken pipe (it needs a group and 7 s to show).
    import os
    import signal

    training = Training()
    ckpt = Checkpointer(tmp_path, every=1000, upload="process", snapshot_every=None)
    training.run(ckpt, 1)
    ckpt.save(0, training.state, wait=True)
    assert ckpt.durable == {"local": 0}
    before = ckpt.upload_pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    training.step()
    _until(lambda: ckpt.upload_pid != before)
    assert ckpt._met is not None
    assert not ckpt._met.uploader.is_ready()  # it imports torch: with "auto" a thread saves
    ckpt.save(1, training.state, wait=True)
    assert ckpt.durable == {"local": 1}, ckpt.errors
    _until(lambda: bool(ckpt.errors))
    assert "was begun anew" in ckpt.errors[0]
    ckpt.close(final=False)
    assert restored(tmp_path)[1].digest() == training.digest()


@pytest.mark.parametrize("fenced", [True, False])
def test_weights_change_only_once_they_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """The copy is made to begin late; without the fence the probe does see stale bytes."""
    from torchett.levers.checkpoint.staging import fence, staging

    copy, go = staging._copy, threading.Event()

    def late(slot: Any, tensor: Any) -> None:
        go.wait(0.3)
        copy(slot, tensor)

    monkeypatch.setattr(staging, "_copy", late)
    monkeypatch.setattr(staging, "_SMALL", 0)
    training = Training()
    ckpt = Checkpointer(tmp_path, every=1000, snapshot_every=None)
    training.run(ckpt, 1)
    training.step()
    truth = training.digest()
    ckpt.save(1, training.state)
    if not fenced:
        fence._before.clear()
    training.step()
    go.set()
    wait(ckpt)
    ckpt.close(final=False)
    if fenced:
        assert restored(tmp_path)[1].digest() == truth
    else:
        # Versions tell that weights moved under the copy: it is given up, not published.
        assert not list(tmp_path.glob("step-*"))


def test_what_changes_in_forward_is_copied_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BatchNorm's statistics change before the optimizer's next step does."""
    from torchett.levers.checkpoint.staging import staging

    copy, go = staging._copy, threading.Event()
    monkeypatch.setattr(staging, "_SMALL", 0)
    monkeypatch.setattr(staging, "_copy", lambda slot, tensor: (go.wait(5), copy(slot, tensor)))
    training = Training()
    ckpt = Checkpointer(tmp_path, every=1000, snapshot_every=None)
    training.run(ckpt, 1)
    training.step()
    truth = training.digest()
    ckpt.save(1, training.state)
    with torch.no_grad():
        training.model(torch.randn(8, 16))
    go.set()
    wait(ckpt)
    ckpt.close(final=False)
    assert restored(tmp_path)[1].digest() == truth


def _until(is_so: Any, seconds: float = 30.0) -> None:
    import time

    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert is_so()


@pytest.mark.parametrize("again", [True, False])
def test_an_upload_process_that_cannot_be_begun_anew_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """No process is to be had for a while, or it has died too often."""
    import os
    import signal

    from torchett.levers.checkpoint.upload import uploaders

    training = Training()
    ckpt = Checkpointer(tmp_path, every=1000, upload="process", snapshot_every=None)
    training.run(ckpt, 1)
    ckpt.save(0, training.state, wait=True)
    assert ckpt.upload_pid is not None

    def refuse(*args: object, **kwargs: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    if again:
        monkeypatch.setattr(uploaders.subprocess, "Popen", refuse)
    else:
        monkeypatch.setattr(uploaders, "_MOST_DEATHS", 0)
    os.kill(ckpt.upload_pid, signal.SIGKILL)
    _until(lambda: ckpt.upload_pid is None)
    training.step()
    ckpt.save(1, training.state)
    ckpt.fence()
    assert ckpt.wait(30.0)
    assert ckpt.durable == {"local": 0}
    _until(lambda: any("no upload process" in error for error in ckpt.errors))
    monkeypatch.undo()
    if again:
        training.step()
        ckpt.save(2, training.state, wait=True)
        assert ckpt.durable == {"local": 2}, ckpt.errors
    ckpt.close(final=False)


def test_saves_without_room_for_a_copy_open_no_more_files(tmp_path: Path) -> None:
    import os

    def kept() -> int:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum("ett-checkpoint" in os.readlink(link) for link in links if os.path.islink(link))

    training = Training()
    before = kept()
    ckpt = Checkpointer(
        tmp_path, every=1000, upload="thread", staging_memory=1, snapshot_every=None
    )
    for step in range(5):
        training.run(ckpt, step + 1)
        ckpt.save(step, training.state)
        ckpt.fence()
        assert ckpt.wait(30.0)
    assert kept() <= before + 2  # an arena has its memory's file open twice
    ckpt.close(final=False)
