"""A record of the test process, with a watcher of its compiles."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kept import Kept

from torchett.levers.compile.adapter import events
from torchett.levers.compile.observe import watch
from torchett.record import api


def _torch() -> Any:
    pytest.importorskip("torch._dynamo")
    return sys.modules["torch"]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """An open record, in a process whose compiles are recorded."""
    torch = _torch()
    monkeypatch.delenv("ETT_RUN", raising=False)
    kept = Kept(tmp_path / "run")
    monkeypatch.setattr(api, "_recorder", kept.recorder)
    monkeypatch.setattr(watch, "_watcher", watch.Watcher())
    torch._dynamo.reset()
    torch._dynamo.pgo.reset_code_state()
    watch.install_plugin()
    yield kept
    events.stop_listening()
    torch._dynamo.reset()
    kept.recorder.close({})


@pytest.fixture
def torch() -> Any:
    return _torch()
