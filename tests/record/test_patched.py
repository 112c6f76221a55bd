"""In a process that trains: what is changed has a row in the table, and can be left out."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from torchett.launch.settings.levers import Levers
from torchett.record.patch_table import TABLE

PLUGINS = list(Levers().plugins)
DEFAULT = [patch for patch in TABLE if patch.default != "asked"]
LAUNCHED = ("agent", "standby", "fast-exit")  # of the agent and of standbys: see tests/launch
INSTALLED = [p for p in DEFAULT if p.target.startswith("torch.") and p.lever not in LAUNCHED]
LEVERS = sorted({patch.lever for patch in INSTALLED})
ON_INSTANCES = {"torch.nn.modules.module:Module._compiled_call_impl"}  # looked for on each


def is_private(name: str) -> bool:
    """Not the dunder methods: without its own, a class has that of its base."""
    last = name.rpartition(":")[2].rpartition(".")[2]
    return last.startswith("_") and not last.startswith("__")


PRIVATE = sorted(
    {
        name
        for patch in INSTALLED
        for name in (patch.target, *patch.needs)
        if is_private(name) or name.startswith("torch._")
    }
    - ON_INSTANCES
)


def _cases() -> dict[str, dict[str, Any]]:
    cases: dict[str, dict[str, Any]] = {
        "stock": {"how": "stock"},
        "init": {"how": "init"},
        "levers": {"how": "levers", "levers": PLUGINS},
    }
    for lever in LEVERS:
        cases[lever] = cases["levers"] | {"env": {"ETT_WITHOUT": lever}}
    for name in PRIVATE:
        cases[f"stock {name}"] = {"how": "stock", "lacking": name}
        cases[f"lacking {name}"] = cases["levers"] | {"lacking": name}
        cases[f"hidden {name}"] = cases["levers"] | {"hidden": name}
    return cases


@cache
def results() -> dict[str, dict[str, Any]]:
    """All cases, run one after the other by one process."""
    cases = _cases()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ETT_")}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("patched.py"))],
        input=json.dumps(list(cases.values())), env=kept | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(cases, map(json.loads, done.stdout.splitlines()), strict=True))


def test_nothing_is_changed_by_torch_itself_meanwhile() -> None:
    """Or the others would test nothing."""
    assert results()["stock"]["changed"] == []


def test_each_change_is_a_row_of_the_table() -> None:
    found = results()["levers"]
    assert found["said"] == []
    assert found["unexplained"] == []
    assert {default for _, _, default in found["installed"]} <= {"record", "run"}
    assert {lever for _, lever, _ in found["installed"]} == set(LEVERS)
    assert found["loss"] == results()["stock"]["loss"]


def test_a_bare_init_changes_what_recording_needs_and_nothing_else() -> None:
    found = results()["init"]
    assert found["changed"]
    assert found["unexplained"] == []
    assert {default for _, _, default in found["installed"]} == {"record"}
    assert found["loss"] == results()["stock"]["loss"]


@pytest.mark.parametrize("lever", LEVERS)
def test_a_lever_left_out_changes_nothing(lever: str) -> None:
    found = results()[lever]
    assert lever not in {one for _, one, _ in found["installed"]}
    targets = {patch.target for patch in TABLE if patch.lever == lever}
    others = {patch.target for patch in TABLE if patch.lever != lever}
    assert (targets - others).isdisjoint(found["changed"])
    assert found["unexplained"] == []
    assert found["loss"] == results()["stock"]["loss"]


@pytest.mark.parametrize("name", PRIVATE)
def test_without_a_name_training_goes_on_as_stock(name: str) -> None:
    """Deleted where torch itself can do without it; else not found by the probe."""
    stock = results()[f"stock {name}"]["loss"]
    alone = isinstance(stock, float)
    found = results()[f"lacking {name}" if alone else f"hidden {name}"]
    assert found["loss"] == results()["stock"]["loss"]
    needing = {p.target for p in INSTALLED if name in (p.target, *p.needs)}
    assert needing.isdisjoint(target for target, _, _ in found["installed"])
    short = name.replace(":", ".")
    assert len([line for line in found["said"] if line.endswith(f"has no {short}")]) == 1
