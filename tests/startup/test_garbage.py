"""Collections while a compile is under way, and what a script says about them."""

import gc
import os
import time
from collections.abc import Iterator

import pytest

from torchett.startup import garbage
from torchett.startup.garbage import rarely_at_first, rarely_collected


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threshold, enabled = gc.get_threshold(), gc.isenabled()
    yield
    gc.set_threshold(*threshold)
    gc.enable() if enabled else gc.disable()


def collections_of(objects: int) -> int:
    before = sum(generation["collections"] for generation in gc.get_stats())
    kept = [[] for _ in range(objects)]
    del kept
    return sum(generation["collections"] for generation in gc.get_stats()) - before


def test_there_are_none_and_afterwards_there_are() -> None:
    gc.enable()
    gc.set_threshold(700, 10, 10)
    assert collections_of(50_000) > 10
    with rarely_collected():
        assert collections_of(50_000) == 0
    assert gc.get_threshold() == (700, 10, 10)
    assert collections_of(50_000) > 10


def test_what_the_script_says_meanwhile_stays() -> None:
    with rarely_collected():
        gc.set_threshold(5000, 20, 20)
        gc.disable()
    assert gc.get_threshold() == (5000, 20, 20)
    assert not gc.isenabled()


def test_a_script_without_collections_gets_none() -> None:
    gc.set_threshold(0)
    with rarely_collected():
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold()[0] == 0


def test_a_compile_within_a_start_leaves_them_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_START_S", 0.2)
    gc.set_threshold(700, 10, 10)
    rarely_at_first()
    with rarely_collected():
        pass
    assert gc.get_threshold()[0] > 700
    until = time.monotonic() + 30
    while gc.get_threshold()[0] > 700 and time.monotonic() < until:
        time.sleep(0.01)
    assert gc.get_threshold() == (700, 10, 10)


def test_a_forked_process_collects_as_usual() -> None:
    gc.set_threshold(700, 10, 10)
    with rarely_collected():
        pid = os.fork()
        if pid == 0:
            os._exit(0 if gc.get_threshold() == (700, 10, 10) else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert gc.get_threshold()[0] > 700
