"""Ranks that come to the store before it is open."""

import socket
import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from torchett.startup import meeting


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was paused; nobody really does. Other threads keep the real clock."""
    taken: list[float] = []
    clock = SimpleNamespace(sleep=taken.append, monotonic=lambda: sum(taken))
    monkeypatch.setattr(meeting, "time", clock)
    return taken


def answering(monkeypatch: pytest.MonkeyPatch, *answers: Exception | None) -> list[Any]:
    asked: list[Any] = []

    def connect(address: tuple[str, int], timeout: float) -> Any:
        answer = answers[min(len(asked), len(answers) - 1)]
        asked.append(address)
        if answer is not None:
            raise answer
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(meeting.socket, "create_connection", connect)
    return asked


def test_it_is_asked_for_again_until_it_is_open(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    no = ConnectionRefusedError()
    asked = answering(monkeypatch, no, no, no, None)
    meeting.wait_until_open("host", 7)
    assert asked == [("host", 7)] * 4
    assert sum(pauses) < 0.05


def test_one_that_is_never_opened_is_left_to_torch(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    answering(monkeypatch, ConnectionRefusedError())
    meeting.wait_until_open("host", 7)
    assert sum(pauses) == pytest.approx(10.0, abs=0.1)


@pytest.mark.parametrize("error", [socket.gaierror("no such host"), TimeoutError(), ValueError()])
def test_what_cannot_be_asked_is_left_to_torch_at_once(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float], error: Exception
) -> None:
    asked = answering(monkeypatch, error)
    meeting.wait_until_open("host", 7)
    assert len(asked) == 1
    assert not pauses


def test_the_rank_that_opens_it_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    module: Any = SimpleNamespace(_create_c10d_store=lambda *args, **kwargs: made.append(args))
    monkeypatch.setattr(meeting, "wait_until_open", lambda *asked: made.append(asked))
    meeting.come_in_at_once(module)
    module._create_c10d_store("host", 7, 0, 2, timedelta(1))
    assert made == [("host", 7, 0, 2, timedelta(1))]
    module._create_c10d_store("host", 7, 1, 2, timedelta(1), use_libuv=True)
    assert made[1:] == [("host", 7), ("host", 7, 1, 2, timedelta(1))]


def test_ranks_meet_whoever_comes_first(closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rendezvous = pytest.importorskip("torch.distributed.rendezvous")
    monkeypatch.setattr(rendezvous, "_create_c10d_store", rendezvous._create_c10d_store)
    meeting.come_in_at_once(rendezvous)
    found: dict[int, Any] = {}
    where = ("127.0.0.1", closed_port)

    def come(rank: int) -> None:
        made = rendezvous._create_c10d_store(*where, rank, 3, timedelta(seconds=30))
        made.set(str(rank), "here")
        made.wait(["0", "1", "2"], timedelta(seconds=30))
        found[rank] = made

    threads = [threading.Thread(target=come, args=(rank,)) for rank in (1, 2, 0)]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [0, 1, 2]
