"""What a batch was pinned from: gone from this process, the same for everybody else."""

import gc
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data._utils import pin_memory as pinning

from torchett.feed import pinned

LARGE = 1 << 18  # floats


@pytest.fixture
def pin() -> Iterator[Any]:
    """torch's function with the hook, where pinning is a copy: there is no GPU here."""
    hooked = SimpleNamespace(pin_memory=lambda data, device=None: data.clone())
    pinned._hook(hooked)
    yield hooked.pin_memory
    if hasattr(pinned._of_thread, "mappings"):
        del pinned._of_thread.mappings


def shared(value: float = 3.0) -> torch.Tensor:
    return torch.full((LARGE,), value).share_memory_()


def resident_kib(tensor: torch.Tensor) -> int:
    """Pages of the tensor that this process has mapped."""
    start = f"{tensor.untyped_storage().data_ptr():x}-"
    told = Path("/proc/self/smaps").read_text()
    found = re.search(rf"^{start}.*?^Rss:\s+(\d+) kB", told, re.MULTILINE | re.DOTALL)
    assert found is not None
    return int(found[1])


def files_in_memory() -> int:
    """Bytes of shared files that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if "/torch_" in line]
    return sum(int(end, 16) - int(start, 16) for start, end in ranges)


def test_its_pages_leave_the_process_and_its_values_stay(pin: Any) -> None:
    tensor = shared()
    assert resident_kib(tensor) >= 4 * LARGE >> 10
    copy = pin(tensor)
    assert resident_kib(tensor) == 0
    assert torch.equal(copy, torch.full((LARGE,), 3.0))
    assert torch.equal(tensor, copy)  # whoever still has it


def test_the_file_goes_when_the_next_batch_comes(pin: Any) -> None:
    before = files_in_memory()
    first, other = shared(), shared()
    pin(first), pin(other)
    assert files_in_memory() >= before + 4 * 4 * LARGE
    del first, other
    gc.collect()
    assert files_in_memory() >= before + 2 * 4 * LARGE  # nobody has unmapped it in a hurry
    last = shared()
    pin(last)
    assert files_in_memory() < before + 3 * 4 * LARGE


def test_the_last_goes_with_its_thread(pin: Any) -> None:
    before = files_in_memory()

    def work() -> None:
        pin(shared())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    assert files_in_memory() == before


def test_a_part_of_a_shared_tensor(pin: Any) -> None:
    whole = shared()
    part = whole[LARGE // 2 + 3 :]
    assert torch.equal(pin(part), part.clone())
    assert resident_kib(whole) <= 4 * LARGE >> 10
    assert torch.equal(whole, torch.full((LARGE,), 3.0))


@pytest.mark.parametrize(
    "data",
    [torch.ones(8).share_memory_(), torch.ones(LARGE), "a word", torch.nn.Parameter(torch.ones(2))],
    ids=["small", "not shared", "no tensor", "a parameter"],
)
def test_others_are_left_alone(data: Any) -> None:
    hooked = SimpleNamespace(pin_memory=lambda data, device=None: object())
    pinned._hook(hooked)
    hooked.pin_memory(data)
    assert not getattr(pinned._of_thread, "mappings", None)


def test_what_is_pinned_already_is_left_alone() -> None:
    hooked = SimpleNamespace(pin_memory=lambda data, device=None: data)
    pinned._hook(hooked)
    tensor = shared()
    hooked.pin_memory(tensor)
    assert resident_kib(tensor) > 0


def test_memory_that_cannot_be_mapped_twice(pin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "_is_shared", lambda data: True)
    private = torch.ones(LARGE)
    assert torch.equal(pin(private), private)
    assert torch.equal(private, torch.ones(LARGE))


def test_torchs_own_function_is_hooked_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is a collection: torch comes back to the function of the module for each part."""
    monkeypatch.setattr(pinning, "pin_memory", pinning.pin_memory)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    pinned._hook(pinning)
    batch = {"x": shared(1.0), "y": [shared(2.0), torch.ones(2)]}
    out = pinning.pin_memory(batch, None)
    assert [float(t[0]) for t in (out["x"], *out["y"])] == [1.0, 2.0, 1.0]
    assert resident_kib(batch["x"]) == resident_kib(batch["y"][0]) == 0
    del pinned._of_thread.mappings


def test_named_files_of_the_other_strategy(pin: Any) -> None:
    """torch.multiprocessing's file_system strategy: a header lies before the data."""
    from torch.multiprocessing import get_sharing_strategy, set_sharing_strategy

    usual = get_sharing_strategy()
    set_sharing_strategy("file_system")
    try:
        tensor = shared()
        copy = pin(tensor)
        assert torch.equal(copy, torch.full((LARGE,), 3.0))
        assert torch.equal(tensor, copy)
    finally:
        set_sharing_strategy(usual)


def test_it_comes_aboard() -> None:
    from torchett.launch.levers import Levers

    assert "torchett.feed.pinned" in Levers().aboard
    assert "torchett.feed.pinned" not in Levers(light_batches=False).aboard
