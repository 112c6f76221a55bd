"""Uploads end: one that stands still is given up and made again, and later saves are durable."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_ranks import world
from trainer import Training, uninterrupted

from torchett.levers.checkpoint import Checkpointer
from torchett.levers.checkpoint.store_coordinator import Alone
from torchett.levers.checkpoint.stored.catalog import entries, verify
from torchett.levers.checkpoint.stored.storage import Folder, ObjectStore, open_storage
from torchett.levers.checkpoint.upload import upload_watch
from torchett.levers.checkpoint.upload.upload import UploadResult
from torchett.levers.checkpoint.upload.upload_watch import UploadWatch


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_watch, "_PAUSES_S", (0.01, 0.01, 0.01))


def until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert is_so()


def saved_once(where: Path, stall_s: float = 1.5, **settings: Any) -> tuple[Training, Checkpointer]:
    training = Training()
    ckpt = Checkpointer(where, every=1000, upload_stall_s=stall_s, **settings)
    training.run(ckpt, 1)
    return training, ckpt


def writes(monkeypatch: pytest.MonkeyPatch, act: Callable[[str], None]) -> None:
    """Let each write to a Folder do this first."""
    write = Folder.write

    @contextmanager
    def acts(self: Folder, path: str) -> Any:
        act(path)
        with write(self, path) as stream:
            yield stream

    monkeypatch.setattr(Folder, "write", acts)


def test_an_upload_that_stands_still_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    training, ckpt = saved_once(tmp_path, upload="thread")
    first, go = threading.Event(), threading.Event()

    def stall(path: str) -> None:
        if not first.is_set():
            first.set()
            go.wait(120)

    writes(monkeypatch, stall)
    truth = training.digest()
    ckpt.save(0, training.state)
    until(lambda: ckpt.durable == {"local": 0})
    assert "has written nothing for" in caplog.text
    for step in (1, 2):  # the arena is filled again while the first upload still stands there
        training.step()
        ckpt.save(step, training.state, wait=True)
    go.set()
    time.sleep(0.3)  # it goes on, and must not publish what is in the arena now
    assert [entry.step for entry in entries(open_storage(tmp_path))] == [2, 1]
    assert all(verify(entry) == [] for entry in entries(open_storage(tmp_path)))
    ckpt.close(final=False)
    assert truth == uninterrupted(1).digest()


@pytest.mark.e2e
def test_an_upload_process_that_stands_still_is_replaced(tmp_path: Path) -> None:
    # The next one has to import torch within the limit.
    training, ckpt = saved_once(tmp_path, 15.0, upload="process")
    until(lambda: bool(ckpt._met and ckpt._met.uploader.is_ready()))
    before = ckpt.upload_pid
    assert before is not None
    os.kill(before, signal.SIGSTOP)
    ckpt.save(0, training.state)
    until(lambda: ckpt.durable == {"local": 0})
    assert ckpt.upload_pid not in (None, before)
    assert not ckpt.errors
    ckpt.close(final=False)


def test_storage_that_fails_for_a_while_costs_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, ckpt = saved_once(tmp_path, upload="thread")
    failures = iter(range(2))

    def fails(path: str) -> None:
        if path.endswith(".distcp") and next(failures, None) is not None:
            raise OSError(errno.EIO, "Input/output error")

    writes(monkeypatch, fails)
    ckpt.save(0, training.state)
    until(lambda: ckpt.durable == {"local": 0})
    assert not ckpt.errors
    ckpt.close(final=False)  # the thread that saves may still write what it learned of intervals
    assert not list(tmp_path.glob("*.tmp-*"))


def test_saves_that_fail_again_and_again_are_said_and_the_next_ones_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    training, ckpt = saved_once(tmp_path, upload="thread")
    noted: list[str] = []
    monkeypatch.setattr(upload_watch, "note", lambda name, fact: noted.append(name))

    def fails(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        writes(patch, fails)
        for step in range(4):
            ckpt.save(step, training.state, wait=True)
    assert ckpt.durable == {}
    assert "2 saves in a row have failed; the newest durable checkpoint" in caplog.text
    assert "4 saves in a row have failed" in caplog.text
    ckpt.save(4, training.state, wait=True)
    assert ckpt.durable == {"local": 4}
    assert "checkpoints are durable again: step 4" in caplog.text
    assert noted == [*["checkpoints_not_durable"] * 2, "checkpoints_durable_again"]
    ckpt.close(final=False)


def test_the_clock_runs_only_once_all_ranks_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(Alone):
        size = 2

    ranks, now = Two(), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = UploadWatch(ranks, limit_s=60.0)
    watch.begins(7)
    for _ in range(100):
        now[0] += 10
        assert watch.gives_up(0) is None  # for a quarter of an hour the other has not come
    ranks.count("upload/0/0/here", 1)
    assert watch.gives_up(0) is None
    for _ in range(30):
        now[0] += 10
        ranks.count("upload/0/0/moved", 1)
        assert watch.gives_up(0) is None  # the other rank writes
    now[0] += 50
    assert watch.gives_up(0) is None
    now[0] += 20
    assert watch.gives_up(0) == "nothing was written for 70 s"


def test_no_attempt_follows_where_someone_waits_or_all_are_used_up() -> None:
    failed = UploadResult(step=1, error="503", can_retry=True)
    watch = UploadWatch(Alone(), limit_s=60.0)
    tries = 0
    while watch.another(failed) is not None:
        tries += 1
    assert tries == 3
    watch.hurry()
    assert watch.another(failed) is None
    assert watch.another(UploadResult(step=1, error="wrong state")) is None
    assert watch.another(UploadResult(step=1)) is None
    assert watch.another(failed) is not None


@pytest.mark.e2e
def test_ranks_may_upload_at_different_times(tmp_path: Path) -> None:
    assert world("late", tmp_path).count("durable") == 2


def test_an_object_store_that_answers_503_for_a_while_costs_no_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("fsspec").filesystem("memory").store.clear()
    training = Training()
    ckpt = Checkpointer("memory://sometimes/job", every=1000, upload="thread")
    training.run(ckpt, 1)
    answers = iter(["503 Slow Down"] * 2)
    write = ObjectStore.write

    @contextmanager
    def sometimes(self: ObjectStore, path: str) -> Any:
        if (answer := next(answers, None)) is not None:
            raise RuntimeError(answer)  # what a client library raises is no OSError
        with write(self, path) as stream:
            yield stream

    monkeypatch.setattr(ObjectStore, "write", sometimes)
    ckpt.save(0, training.state)
    until(lambda: ckpt.durable == {"local": 0})
    assert not ckpt.errors
    ckpt.close(final=False)
    assert [entry.step for entry in entries(open_storage("memory://sometimes/job"))] == [0]
