"""A real S3 server that stalls, answers 503 or loses a part costs no later save."""

import logging
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")
from faulty_s3 import BLOCK, FaultyS3, faulty_s3
from trainer import Training

from torchett.levers.checkpoint import Checkpointer
from torchett.levers.checkpoint.stored.catalog import entries, verify
from torchett.levers.checkpoint.stored.storage import open_storage
from torchett.levers.checkpoint.upload import upload_watch

WIDTH = 1 << 17  # 28 MB of state, so that it is sent in parts


@pytest.fixture
def server() -> Iterator[FaultyS3]:
    with faulty_s3() as server:
        yield server


def until(is_so: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert is_so()


def saved(server: FaultyS3) -> tuple[Training, Checkpointer]:
    """A trainer that has saved step 0."""
    training = Training(WIDTH)
    ckpt = Checkpointer(server.address, every=1000, upload="thread", snapshot_every=None)
    training.run(ckpt, 1)
    ckpt.save(0, training.state, wait=True)
    assert ckpt.durable == {"local": 0}, ckpt.errors
    return training, ckpt


def goes_on_and_saves(training: Training, ckpt: Checkpointer, step: int) -> None:
    """The next save is durable, every checkpoint that is listed is whole, and it is restored."""
    training.step()
    ckpt.step(step, training.state)
    ckpt.save(step, training.state, wait=True)
    assert ckpt.durable == {"local": step}, ckpt.errors
    ckpt.close(final=False)
    listed = entries(open_storage(ckpt._tiers[0].root))
    assert listed[0].step == step
    assert [verify(entry) for entry in listed] == [[] for _ in listed]
    fresh = Training(WIDTH)
    again = Checkpointer(ckpt._tiers[0].root, every=1000, snapshot_every=None)
    assert again.restore(fresh.state) == step + 1
    again.close(final=False)
    assert fresh.digest() == training.digest()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one for one in caplog.records if one.name.startswith("torchett")]
    return [one.getMessage() for one in found if one.levelno >= logging.WARNING]


def test_a_store_that_stalls(
    server: FaultyS3, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_watch, "_PAUSES_S", (0.01, 0.01, 0.01))
    training, ckpt = saved(server)
    assert ckpt._met is not None
    ckpt._met.watch.limit_s = 4.0
    server.fault = "stall"
    ckpt.save(1, training.state)
    steps = 1
    waiting = time.monotonic()
    while len(server.attempts) < 2 and time.monotonic() - waiting < 120:
        steps += 1  # training goes on
        training.step()
        ckpt.step(steps, training.state)
        time.sleep(0.02)
    ckpt._met.watch.limit_s = 600.0
    server.heal()
    until(lambda: ckpt.durable == {"local": 1})
    assert len(server.attempts) == 2
    assert not ckpt.errors
    assert "the upload of step 1 has written nothing for" in warnings(caplog)[0]
    goes_on_and_saves(training, ckpt, steps + 1)


def test_a_store_that_answers_503_for_a_while(
    server: FaultyS3, caplog: pytest.LogCaptureFixture
) -> None:
    training, ckpt = saved(server)
    server.fault = "503"
    ckpt.save(1, training.state)
    until(lambda: server.failed["503"] >= 3)
    server.heal()
    until(lambda: ckpt.durable == {"local": 1})
    assert not ckpt.errors
    assert not warnings(caplog)
    goes_on_and_saves(training, ckpt, 2)


def test_a_store_that_loses_a_part(server: FaultyS3) -> None:
    training, ckpt = saved(server)
    server.fault = "lose"
    ckpt.save(1, training.state, wait=True)
    assert server.failed["lose"] == 1
    assert [entry.step for entry in entries(open_storage(server.address))] == [0]
    until(lambda: len(ckpt.errors) == 1)
    goes_on_and_saves(training, ckpt, 2)
    assert len(ckpt.errors) == 1


def test_a_file_that_is_lost_is_no_checkpoint(server: FaultyS3) -> None:
    """One that is smaller than a part is sent by one request."""
    training = Training(64)
    ckpt = Checkpointer(server.address, every=1000, upload="thread", snapshot_every=None)
    training.run(ckpt, 1)
    assert sum(t.nbytes for t in training.tensors()) < BLOCK
    server.fault = "lose"
    ckpt.save(1, training.state, wait=True)
    assert entries(open_storage(server.address)) == []
    until(lambda: bool(ckpt.errors))
    assert "cannot be seen" in ckpt.errors[0]
    ckpt.save(2, training.state, wait=True)
    assert ckpt.durable == {"local": 2}
    ckpt.close(final=False)
