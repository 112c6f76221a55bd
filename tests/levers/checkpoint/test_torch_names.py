"""Where a torch lacks a private name, a checkpoint is saved and restored all the same."""

import logging
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import torchett as ett
from torchett.levers.checkpoint import torch_names

DCP = "torch.distributed.checkpoint"
NAMES = [
    (f"{DCP}._nested_dict", "flatten_state_dict"),
    (f"{DCP}.filesystem", "_StorageInfo"),
    (f"{DCP}.filesystem", "_StoragePrefix"),
    ("torch", "_foreach_copy_"),
    ("torch", "_disable_dynamo"),
]


@pytest.fixture(autouse=True)
def _looked_up_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("torchett.levers.checkpoint.staging.fence._installed", False)
    torch_names._found.cache_clear()
    yield
    torch_names._found.cache_clear()


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "more": {"list": [1, 2], "at": 5}}


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[name for _, name in NAMES])
def test_a_missing_name_is_said_once_and_done_without(
    module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.delattr(import_module(module), name)
    saved = state()
    with caplog.at_level(logging.WARNING, "torchett"):
        with ett.Checkpointer(tmp_path, every=1, upload="thread") as ckpt:
            for step in range(2):
                ckpt.step(step, saved)
        loaded = state()
        with torch.no_grad():
            for weight in loaded["model"].parameters():
                weight.zero_()
        assert ett.Checkpointer(tmp_path, every=1).restore(loaded) == 2
    for ours, theirs in zip(loaded["model"].parameters(), saved["model"].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert loaded["more"] == saved["more"]
    said = [line for line in caplog.messages if "do without" in line]
    assert said == [f"torchett: checkpoints do without {module}.{name}: this torch has none"]


def test_what_stands_in_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed._shard._utils import narrow_tensor_by_index
    from torch.distributed.checkpoint import _traverse
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    nested = {"a": {"b": torch.ones(2), "c": [torch.ones(1), {"d": 3}]}, "e": [1, 2], "f": {}}
    tensors = [torch.arange(6.0).view(2, 3), torch.arange(2.0)]
    whole = torch.arange(24).view(4, 6)
    with monkeypatch.context() as without:
        without.setattr(torch_names, "_found", lambda module, name: None)
        flat, paths = torch_names.flatten_state_dict(nested)
        joined = torch_names.one_after_the_other(tensors)
        again = torch_names.apart_again(joined, tensors)
    official, official_paths = flatten_state_dict(nested)
    assert list(flat) == list(official)
    assert paths == official_paths
    assert all(map(torch.equal, again, tensors))
    part = torch_names.narrow(whole, (1, 2), (2, 6))
    assert torch.equal(part, narrow_tensor_by_index(whole, (1, 2), (2, 6)))
    for path in (("x", "y"), ("x", 2, "z"), ("a", "c", 3, 0)):
        ours: Any = {"a": {"c": [1]}}
        theirs: Any = {"a": {"c": [1]}}
        torch_names.set_element(ours, path, 7)
        _traverse.set_element(theirs, path, 7)
        assert ours == theirs
