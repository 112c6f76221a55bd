"""A script that knows nothing of torchett compiles while its loader works, from a restart on."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import eval_frame
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.data import DataLoader, Dataset, dataloader

from torchett.record import api
from torchett.record.recorder import Silent
from torchett.startup.remembered import FirstCalls


class Slow(Dataset[Any]):
    """The first row comes late."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s

    def __len__(self) -> int:
        return 12

    def __getitem__(self, at: int) -> Any:
        if at == 0:
            time.sleep(self._first_s)
        return torch.full((6,), at / 12), torch.tensor(at % 3)


@contextmanager
def watched(folder: Path | None) -> Iterator[None]:
    """In the body, first calls are remembered in `folder`; afterwards torch is as it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "_recorder", Silent())
        for owner, name in (
            (eval_frame.OptimizedModule, "__init__"),
            (eval_frame.OptimizedModule, "__call__"),
            (dataloader.DataLoader, "__iter__"),
        ):
            patch.setattr(owner, name, getattr(owner, name))
        if folder is not None:
            calls = FirstCalls(folder, rank=0)
            calls.watch_models(eval_frame)
            calls.watch_loaders(dataloader)
        torch._dynamo.reset()
        yield
    torch._dynamo.reset()


def attempt(folder: Path | None, first_s: float = 0.0, width: int = 6) -> dict[str, Any]:
    """Train a little, with first calls remembered in `folder`; what was seen of it."""
    with watched(folder):
        return train(first_s, width)


def train(first_s: float, width: int) -> dict[str, Any]:
    torch.manual_seed(3)
    counter = CompileCounterWithBackend("aot_eager")
    model = nn.Sequential(nn.Linear(width, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = torch.compile(model, backend=counter)
    before = []
    with torch.no_grad():
        run.eval()
        run(torch.zeros(2, width))  # not what a training step does
        run.train()
    counter.frame_count = 0
    for rows, wanted in DataLoader(Slow(first_s), batch_size=4, num_workers=1):
        if width != 6:
            rows = rows.repeat(1, width // 6)
        before.append(counter.frame_count)
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(run(rows), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return {"before": before, "compiled": counter.frame_count, "state": state,
            "random": torch.rand(3)}  # fmt: skip


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    pairs = ((one["state"][name], other["state"][name]) for name in one["state"])
    return all(torch.equal(a, b) for a, b in pairs) and torch.equal(one["random"], other["random"])


def test_after_a_restart_the_first_step_has_nothing_to_compile(tmp_path: Path) -> None:
    alone = attempt(None)
    first = attempt(tmp_path)
    again = attempt(tmp_path, first_s=3.0)
    assert alone["before"][0] == first["before"][0] == 0
    assert again["before"][0] == again["compiled"] == alone["compiled"] == 1
    assert same(first, alone)
    assert same(again, alone)


def test_what_a_training_step_was_called_with_is_remembered(tmp_path: Path) -> None:
    attempt(tmp_path)
    (path,) = tmp_path.iterdir()
    told = json.loads(path.read_text())
    assert path.name == "rank-0-model-0.json"
    assert told["autocast"] == {"cpu": "bfloat16"}
    assert told["call"]["dict"][0][1]["tuple"][0]["tensor"]["shape"] == [4, 6]


def test_a_batch_that_comes_first_waits_for_the_compile(tmp_path: Path) -> None:
    attempt(tmp_path)
    again = attempt(tmp_path)
    assert again["compiled"] == 1


def test_another_model_than_remembered_trains_as_ever(tmp_path: Path) -> None:
    attempt(tmp_path)
    alone = attempt(None, width=12)
    again = attempt(tmp_path, width=12, first_s=1.0)
    assert same(again, alone)
    told = json.loads((tmp_path / "rank-0-model-0.json").read_text())  # from now on, this one
    assert told["call"]["dict"][0][1]["tuple"][0]["tensor"]["shape"] == [4, 12]


def test_what_cannot_be_read_is_not_used(tmp_path: Path) -> None:
    alone = attempt(None)
    (tmp_path / "rank-0-model-0.json").write_text("{")
    assert same(attempt(tmp_path), alone)
