"""What the two hooks of a settled loop leave alone, and what becomes of an error in them."""

import logging
from typing import Any

import pytest

from torchett.record.clock import now_ns
from torchett.record.hooks.settled import Settled
from torchett.record.hooks.watcher import Watcher


class Batches:
    def __next__(self) -> int:
        return 1


class Optimizer:
    pass


def test_who_fed_a_loop_before_is_forgotten() -> None:
    settled = Settled(print, print, print)
    elsewhere: list[Any] = []
    fetch = settled.fetching(Batches, lambda: True, lambda batches, t0: elsewhere.append(batches))
    first, second, leader, now = Batches(), Batches(), Optimizer(), now_ns()
    settled.settle(leader, now, 0, lambda *told: None, True)
    assert settled.feed(first, now, now)
    fetch(first)
    assert elsewhere == []
    assert settled.feed(second, now, now)
    fetch(first)
    settled.unsettle()
    fetch(first)
    fetch(second)
    assert elsewhere == [first, first, second]
    assert not vars(leader)


def test_an_error_of_theirs_ends_the_hooks_and_not_the_training(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = Watcher()
    watcher.off = False
    settled, leader, batches = watcher.settled, Optimizer(), Batches()
    fetch = settled.fetching(Batches, lambda: True, lambda batches, t0: None)
    settled.settle(leader, 1, 0, lambda *told: None, True)  # long ago: a pause
    monkeypatch.setattr(settled, "_source", lambda: batches)
    vars(batches)["_ett_tally"] = vars(leader)["_ett_tally"]
    monkeypatch.setattr(watcher.loop, "go_on", None)
    with caplog.at_level(logging.WARNING, "torchett"):
        assert fetch(batches) == 1
    assert watcher.off
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert said[0].startswith("torchett: hooks are off, training goes on")
    assert fetch(batches) == 1
