"""`ett.compile` is torch.compile with a library of compiled code."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

SCRIPT = """
import json, sys
import torch
import torchett as ett
from torchett.record import api

def double(x):
    return 2 * x

torch._dynamo.reset()
compiled = ett.compile(double, cache=sys.argv[1], workload="test", backend="eager")
again = ett.compile(cache=sys.argv[1] + "-other", backend="eager")(double)
torch._dynamo.reset()  # forgets callbacks, but not ours
assert compiled(torch.ones(2)).tolist() == again(torch.ones(2)).tolist() == [2.0, 2.0]
assert callable(ett.compile) and not hasattr(ett.compile, "__path__")  # a plain function
print(json.dumps(api._early_notes))
"""


def run(tmp_path: Path, **env: str) -> tuple[list[Any], str]:
    import os

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "library")],
        capture_output=True,
        text=True,
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")} | env,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_the_first_compile_uses_the_first_library_given(tmp_path: Path) -> None:
    notes, said = run(tmp_path)
    assert [(kind, fact["event"], fact["match"]) for kind, fact in notes] == [
        ("compile_cache", "load", "none")
    ]
    assert "only one compile cache per process" in said
    assert (tmp_path / "library/.key").exists()


def test_disabled_it_is_torch_compile(tmp_path: Path) -> None:
    notes, said = run(tmp_path, ETT_DISABLE="1")
    assert notes == []
    assert not (tmp_path / "library").exists()
    assert "torchett" not in said
