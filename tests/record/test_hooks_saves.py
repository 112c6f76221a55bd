"""The number of the first step after a restore, by whatever tells it."""

from types import SimpleNamespace
from typing import Any

from torchett.record.hooks.saves import SaveDetector
from torchett.record.hooks.span_writer import SpanWriter


class OnDevice:
    """A count of updates that lies on a GPU: asking for it there waits for the GPU."""

    device = SimpleNamespace(type="cuda")

    def __init__(self, value: int) -> None:
        self.value, self.asked = value, 0

    def item(self) -> float:
        self.asked += 1
        return float(self.value)


def restored(optimizer: Any) -> SaveDetector:
    saves = SaveDetector(SpanWriter(), lambda: 0)
    saves.loaded(None, "/somewhere/else", 0, 1)
    if optimizer is not None:
        saves.optimizer_taken(optimizer)
    saves.state_taken(1, 2, of_optimizer=optimizer is not None)
    return saves


def test_an_optimizer_on_a_gpu_is_asked_when_it_is_loaded_and_not_in_the_loop() -> None:
    count = OnDevice(400)
    optimizer = SimpleNamespace(state={0: {"step": count}})
    saves = restored(optimizer)
    count.value = 401  # the first update after the restore
    assert saves.first_index(optimizer) == 400
    assert count.asked == 1
    assert not saves.resumed_unknown


def test_an_optimizer_on_a_cpu_is_asked_after_its_first_update() -> None:
    optimizer = SimpleNamespace(state={0: {"step": 7.0}})
    saves = restored(optimizer)
    optimizer.state[0]["step"] = 8.0
    assert saves.first_index(optimizer) == 7


def test_one_that_counts_nothing_is_told_apart() -> None:
    saves = restored(SimpleNamespace(state={}))
    assert saves.first_index(SimpleNamespace(state={})) == 0
    assert saves.resumed_unknown
