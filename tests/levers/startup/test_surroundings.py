"""A thread of ours takes the settings of the script's thread, and changes those of no other."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from torchett.levers.startup.plan.surroundings import Surroundings


def on_a_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_it_computes_with_the_threads_of_the_script_and_a_loader_keeps_its_own(
    three_threads: None,
) -> None:
    """The loader's pinning thread sets its number of threads to one, and computes later."""
    asked, may_compute, computed = threading.Event(), threading.Event(), []

    def pins() -> None:
        torch.set_num_threads(1)
        asked.set()
        may_compute.wait(10)
        computed.append(torch.get_num_threads())

    pinning = threading.Thread(target=pins)
    pinning.start()
    asked.wait(10)
    around = Surroundings()
    assert on_a_thread(lambda: around.call(torch.get_num_threads)) == 3
    may_compute.set()
    pinning.join()
    assert computed == [1]
    assert on_a_thread(torch.get_num_threads) == 1
