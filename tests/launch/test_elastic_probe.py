"""A torch without a private name that we know runs the job its own way, with one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchett.launch.elastic.torch_names import NAMES, missing

pytest.importorskip("torch")

# Deletes the name once its module has been imported, in our agent only: not in the stock torchrun
# that takes its place, which has another torch's name.
SITECUSTOMIZE = """
import os, sys
if "torchett.launch.elastic.agent" in sys.orig_argv:
    from torchett.record.plugins import when_imported
    module, _, path = os.environ["DELETED"].partition(":")
    def delete(found):
        *owners, name = path.split(".")
        for owner in owners:
            found = getattr(found, owner)
        kinds = [kind for kind in getattr(found, "__mro__", [found]) if name in vars(kind)]
        delattr(kinds[0], name)
    when_imported(module, delete)
"""
RANKS = """
import os, signal, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
os.write(1, f"SAYS {os.environ['RANK']}\\n".encode())  # whole: the ranks share a pipe
"""


def test_this_torch_has_all_of_them() -> None:
    assert missing() is None


def test_other_parameters_are_not_what_we_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "torch.distributed.run:elastic_launch", ("configuration",))
    assert missing() == "torch.distributed.run.elastic_launch(configuration)"


@pytest.mark.parametrize("name", NAMES)
def test_a_job_that_is_killed_once_ends_well_without_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (tmp_path / "ranks.py").write_text(RANKS)
    env = os.environ | {"ETT_RUNS": str(tmp_path / "runs"), "DELETED": name}
    env["PYTHONPATH"] = f"{tmp_path}:{env.get('PYTHONPATH', '')}"
    ett = [sys.executable, "-m", "torchett.cli.main"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", "--max-restarts", "1", str(tmp_path / "ranks.py")]
    done = subprocess.run(
        [*ett, "run", "--job", "job", "--no-standby", "--progress", "0", "--", *torchrun],
        env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["SAYS 0", "SAYS 1"]
    said = [line for line in done.stderr.splitlines() if line.startswith("torchett:")]
    assert said == [
        f"torchett: this torch has no {name.replace(':', '.')} as we know it: torch's own torchrun"
        " runs the job, without standbys"
    ], done.stderr
    shown = subprocess.run(
        [*ett, "report", str(tmp_path / "runs" / "job"), "--json"],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(shown.stdout)
