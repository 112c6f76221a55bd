"""With a GPU, compile workers and Triton's driver start before the model is traced."""

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from torchett.levers.startup.first_compile import compile_tools

torch = pytest.importorskip("torch")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tools that were started, on a machine that seems to have a GPU."""
    found: list[str] = []

    def active() -> Any:
        found.append("driver")
        return SimpleNamespace(get_current_target=lambda: None)

    class Driver:
        active = property(lambda self: active())

    fakes = {
        "torch._inductor.compile_fx": SimpleNamespace(),
        "torch._inductor.async_compile": SimpleNamespace(
            maybe_warm_pool=lambda: found.append("workers")
        ),
        "triton.runtime": SimpleNamespace(driver=Driver()),
        "triton.backends.nvidia.compiler": SimpleNamespace(
            get_ptxas_version=lambda: found.append("ptxas")
        ),
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: found.append(f"on {device}"))
    monkeypatch.setattr(
        compile_tools, "begin_beside", lambda work, *args, name: work(*args)
    )  # what it does beside is looked at here
    return found


def test_workers_and_triton_start_on_the_device_of_the_caller(asked: list[str]) -> None:
    compile_tools.start_compile_tools()
    assert asked == ["workers", "on 3", "driver", "ptxas"]


def test_nothing_starts_without_a_gpu(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    compile_tools.start_compile_tools()
    assert asked == []


def test_nothing_starts_if_another_backend_compiles(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch._inductor.compile_fx")
    compile_tools.start_compile_tools()
    assert asked == []


def test_an_error_does_not_fail_the_compile(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused() -> None:
        raise OSError("no processes left")

    monkeypatch.setattr(sys.modules["torch._inductor.async_compile"], "maybe_warm_pool", refused)
    with caplog.at_level(logging.DEBUG, logger="torchett"):
        compile_tools.start_compile_tools()
    assert "no processes left" in caplog.text


def test_nothing_starts_if_the_model_was_compiled_ahead(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cooked = SimpleNamespace(followed={"model-1.recipe"})
    monkeypatch.setitem(sys.modules, "torchett.levers.startup.first_compile.precompile", cooked)
    compile_tools.start_compile_tools()
    assert asked == []
