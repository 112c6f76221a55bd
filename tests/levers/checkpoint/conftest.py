"""Tests with a trainer fork it: one thread of torch, and nothing recorded."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)  # before any operator: a fork must not inherit a pool without threads


@pytest.fixture(autouse=True)
def _unrecorded(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    if not hasattr(request.module, "Training"):
        yield
        return
    monkeypatch.setenv("ETT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("ETT_DISABLE", "1")
    yield
    from torchett.levers.checkpoint.staging import fence

    fence._before.clear()
    fence.forget()
