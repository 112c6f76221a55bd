"""torch's cache keys: a process with plugins of torchett finds what any other process has cached.

A key holds what pickle says of the graph's tensors. Of a memory format pickle says in which module
it found `torch.contiguous_format` first, and that is a matter of what was imported before torch.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FRESH = "torchett.launch.standby.rank_process"  # ends without a teardown


pytest.importorskip("torch")

SCRIPT = """
import hashlib
import torch
from torch._inductor.codecache import FxGraphCachePickler, extract_tensor_metadata_for_cache_key
from torch._subclasses.fake_tensor import FakeTensorMode

with FakeTensorMode():
    like = extract_tensor_metadata_for_cache_key(torch.empty(4, 64))
empty = torch.fx.GraphModule({}, torch.fx.Graph())
print("key", hashlib.sha256(FxGraphCachePickler(empty).dumps(like)).hexdigest())
"""


def key(folder: Path, *command: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *command, str(folder / "script.py")], cwd=folder,
        env=os.environ | {"ETT_RUNS": str(folder)} | env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("key ")[2].strip()


@pytest.mark.parametrize(
    ("option", "fork"), [("--no-standby", "0"), ("--standby", "0"), ("--standby", "1")]
)
def test_every_process_of_a_job_has_the_keys_of_any_other(
    tmp_path: Path, option: str, fork: str
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    levers = ["--standby-model", "--compile-cache", str(tmp_path / "library")]
    ett = ["-m", "torchett.cli.main", "run", "--job", "job", option, *levers]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    found = key(tmp_path, *ett, "--", *torchrun, ETT_STANDBY_FORK=fork)
    assert len(found) == 64
    assert found == key(tmp_path)


def test_a_restarted_rank_has_the_same_keys(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    assert key(tmp_path, "-m", FRESH) == key(tmp_path)
