"""Collections while a compile is under way, and what a script says about them."""

import gc
from collections.abc import Iterator

import pytest

from torchett.startup.garbage import rarely_collected


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
