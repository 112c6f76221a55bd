"""A kernel is tuned once: the next process benchmarks nothing, a changed kernel is tuned again."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from torchett.levers.compile.adapter.autotune import (
    Kernel,
    Tuned,
    listen_to_inductor,
    listen_to_triton,
)
from torchett.levers.compile.tuning.kernels import kernel_costs
from torchett.levers.compile.tuning.pins import Pins, pin_path, pins_folder, prune
from torchett.record import api

KERNEL = Kernel("mm", "triton", "source", "configs", "device")


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The recorded facts, with pins in a folder of the test."""
    noted: list[Any] = []
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ETT_PINS", "1")
    monkeypatch.delenv("ETT_RUN", raising=False)
    monkeypatch.setattr(api, "note", lambda kind, fact: noted.append((0, 0, fact)))
    return noted


def tuned(key: str = "(1,)", **times: float) -> Tuned:
    timings = tuple(times.items())
    winner = min(timings, key=lambda t: t[1])[0]
    return Tuned(kernel=KERNEL, key=key, winner=winner, timings_ms=timings, tuning_s=1.5)


def test_a_winner_holds_until_anything_it_depends_on_changes(facts: list[Any]) -> None:
    Pins().tuned(tuned(a=3.0, b=1.0))
    later = Pins()
    assert later.winner(KERNEL, "(1,)") == "b"
    for changed in ("name", "origin", "source", "configs", "device"):
        assert later.winner(replace(KERNEL, **{changed: "other"}), "(1,)") is None
    assert later.winner(KERNEL, "(2,)") is None
    (cost,) = kernel_costs(facts)
    assert (cost.benchmarks, cost.pinned, cost.tuning_s) == (2, 1, 1.5)
    assert cost.winners == {"(1,)": "b"}


def test_pins_are_used_only_with_the_variable(
    facts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETT_PINS", "0")
    Pins().tuned(tuned(a=1.0))
    assert not pins_folder().exists()
    assert len(facts) == 1
    monkeypatch.setenv("ETT_PINS", "1")
    Pins().tuned(tuned(a=1.0))
    monkeypatch.setenv("ETT_PINS", "0")
    assert Pins().winner(KERNEL, "(1,)") is None


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": "pin/1"}', '{"format": "pin/2"}'])
def test_a_damaged_pin_is_no_pin(facts: list[Any], damage: str) -> None:
    Pins().tuned(tuned(a=1.0))
    path = pin_path(pins_folder(), KERNEL, "(1,)")
    path.write_text(damage)
    assert Pins().winner(KERNEL, "(1,)") is None
    Pins().tuned(tuned(a=1.0))
    assert Pins().winner(KERNEL, "(1,)") == "a"
    assert [file.name for file in pins_folder().iterdir()] == [path.name]


def test_a_folder_that_cannot_be_written_costs_the_pin_only(
    facts: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file")
    Pins().tuned(tuned(a=1.0))
    assert "a winner is not pinned" in caplog.text


def test_pruning_keeps_the_configs_that_are_best_over_all_keys(facts: list[Any]) -> None:
    Pins().tuned(tuned("(1,)", a=1.0, b=1.1, c=9.0, d=float("inf")))
    Pins().tuned(tuned("(2,)", a=4.0, b=1.0, c=5.0, d=2.0))
    assert prune(pins_folder(), 2) == {"mm": (2, 4)}
    assert Pins().kept(KERNEL) == {"a", "b"}
    assert Pins().kept(replace(KERNEL, configs="more")) is None
    assert Pins().winner(KERNEL, "(2,)") == "b"
    assert prune(pins_folder(), 9) == {"mm": (3, 4)}


class Autotuner:
    """The parts of Triton's Autotuner that the adapter uses."""

    def __init__(self, fn: Any, configs: list[str]) -> None:
        self.fn, self.base_fn, self.configs = fn, fn, configs
        self.cache: dict[Any, Any] = {}
        self.nargs: dict[str, Any] = {}

    def _bench(self, *args: Any, config: str) -> list[float]:
        return [float(len(config))] * 3

    def prune_configs(self, kwargs: Any) -> list[str]:
        return self.configs

    def run(self, key: Any) -> str:
        if key not in self.cache:
            timings = {config: self._bench(config=config) for config in self.prune_configs({})}
            self.cache[key] = min(timings, key=lambda c: timings[c])
        return str(self.cache[key])


def test_a_key_that_has_no_lasting_text_is_tuned_each_time(
    facts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchett.levers.compile.adapter.autotune._device", lambda: "cpu")

    class Fresh(Autotuner):
        pass

    module = SimpleNamespace(Autotuner=Fresh)
    monkeypatch.setitem(sys.modules, "triton.runtime.autotuner", module)  # type: ignore[arg-type]
    listen_to_triton(Pins())
    for _ in range(2):
        assert Fresh(tuned, ["long", "a"]).run((1, "fp32")) == "a"
        assert Fresh(tuned, ["long", "a"]).run((object(),)) == "a"
    (cost,) = kernel_costs(facts)
    assert (cost.benchmarks, cost.pinned) == (2, 1)
    assert Fresh(tuned, ["long", "a", "b"]).run((1, "fp32")) == "a"
    assert kernel_costs(facts)[0].benchmarks == 5


class Launcher:
    """A compiled kernel with its config."""

    def __init__(self, config: str) -> None:
        self.config = config


class CachingAutotuner:
    """The parts of Inductor's CachingAutotuner that the adapter uses."""

    benchmarked = 0
    kept: ClassVar[list[str]] = []  # by its own cache

    def __init__(self, *configs: str) -> None:
        self.fn = SimpleNamespace(src="def triton_…", __name__="triton_poi_fused_add_0")
        self.launchers = [Launcher(config) for config in configs]
        self.inductor_meta = {"kernel_name": "triton_poi_fused_add_0"}
        self.device_props, self.triton_meta = SimpleNamespace(cc=90), {"signature": {"x": "*fp32"}}

    def benchmark_all_configs(self) -> dict[Any, float]:
        CachingAutotuner.benchmarked += 1
        return {launcher: float(len(launcher.config)) for launcher in self.launchers}

    def autotune_to_one_config(self) -> None:
        timings = self.benchmark_all_configs()
        self.launchers = [min(timings, key=lambda one: timings[one])]
        CachingAutotuner.kept.append(self.launchers[0].config)


def test_inductors_kernels_are_pinned_too(
    facts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchett.levers.compile.adapter.autotune._device", lambda: "cuda")
    module = SimpleNamespace(CachingAutotuner=CachingAutotuner)
    name = "torch._inductor.runtime.triton_heuristics"
    monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    listen_to_inductor(Pins())
    for count in (1, 2):
        tuner = CachingAutotuner("XBLOCK: 1024", "XBLOCK: 64")
        tuner.autotune_to_one_config()
        assert [launcher.config for launcher in tuner.launchers] == ["XBLOCK: 64"]
        assert CachingAutotuner.benchmarked == 1
        assert CachingAutotuner.kept == ["XBLOCK: 64"] * count  # torch hears of it either way
    (cost,) = kernel_costs(facts)
    assert (cost.origin, cost.benchmarks, cost.pinned) == ("inductor", 2, 1)
    other = CachingAutotuner("XBLOCK: 1024", "XBLOCK: 32")
    other.autotune_to_one_config()
    assert CachingAutotuner.benchmarked == 2


def test_all_names_that_the_adapter_uses_exist_in_this_torch() -> None:
    heuristics = pytest.importorskip("torch._inductor.runtime.triton_heuristics")
    assert callable(heuristics.CachingAutotuner.benchmark_all_configs)


SCRIPT = """
import sys, time, torch, triton, triton.language as tl
benchmarks = 0
def do_bench(call, quantiles):
    global benchmarks
    benchmarks += 1
    began = time.perf_counter(); call(); t = time.perf_counter() - began
    return [t, t, t]
@triton.autotune(
    [triton.Config({"BLOCK": block}) for block in (16, 64, 256)], key=["n"], do_bench=do_bench
)
@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1.0, mask=at < n)
for n in (300, 300, 500):
    x, y = torch.zeros(n), torch.zeros(n)
    add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
    assert y.sum() == n * ADDED
print("benchmarks", benchmarks)
"""


@pytest.mark.e2e
@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton, here for its interpreter")
def test_a_second_process_benchmarks_nothing_and_a_changed_kernel_is_tuned_again(
    tmp_path: Path,
) -> None:
    env = os.environ | {
        "ETT_RUNS": str(tmp_path / "runs"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        "TRITON_INTERPRET": "1",
    }

    def ett(*args: str) -> str:
        command = [sys.executable, "-m", "torchett.cli.main", *args]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    script = tmp_path / "train.py"
    counts = []
    for job, text in (
        ("first", SCRIPT.replace("ADDED", "1")),
        ("second", SCRIPT.replace("ADDED", "1")),
        ("changed", SCRIPT.replace("ADDED", "2").replace("1.0", "2.0")),
        ("more", SCRIPT.replace("ADDED", "2").replace("1.0", "2.0").replace("256)", "256, 512)")),
    ):
        script.write_text(text)
        said = ett("run", "--job", job, "--", str(script))
        found = json.loads(ett("compile", "kernels", job, "--json"))
        assert f"benchmarks {found['benchmarks']}\n" in said
        counts.append((found["benchmarks"], found["pinned"]))
    assert counts == [(6, 0), (0, 2), (6, 0), (8, 0)]

    assert "add: 1 of 3 configs kept" in ett("compile", "kernels", "changed", "--prune", "1")
    script.write_text(SCRIPT.replace("ADDED", "2").replace("1.0", "2.0").replace("500", "600"))
    triton = tuple(map(int, version("triton").split(".")[:2]))
    left = 0 if triton >= (3, 9) else 1  # the one that is left needs no benchmark
    assert f"benchmarks {left}\n" in ett("run", "--job", "pruned", "--", str(script))
    script.write_text(SCRIPT.replace("ADDED", "1"))
    assert "benchmarks 6\n" in ett("run", "--job", "off", "--no-pins", "--", str(script))
    page = ett("compile", "kernels", "first")
    assert "6 benchmarks, 0 pinned" in page
    assert "BLOCK: " in page
