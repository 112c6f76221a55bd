"""What failed, as `ett run` and `ett report` say it: the first cause, its rank, whose it is."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchett.model import Attempt
from torchett.runs.reader import RunReader

pytestmark = pytest.mark.e2e
ETT = [sys.executable, "-m", "torchett.cli.main"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
_OURS = ("ETT_", "SLURM_", "PET_", "TORCHELASTIC_", "JOB_")


def run(folder: Path, script: str, *words: str, torchrun: bool = True, **env: str) -> Any:
    """What `ett run` of the script said, and its run."""
    (folder / "train.py").write_text(script)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
    command = [*TORCHRUN, "train.py"] if torchrun else [sys.executable, "train.py"]
    done = subprocess.run(
        [*ETT, "run", "--job", "a", "--progress", "0", *words, "--", *command],
        env=kept | {"ETT_RUNS": str(folder / "runs")} | env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done, RunReader(folder / "runs" / "a").poll()


def of(attempt: Attempt) -> tuple[str | None, int | None]:
    return attempt.cause, attempt.failed_rank


TWO_RANKS = """
import os, signal, sys, time
import torch, torch.distributed as dist
import torchett as ett
ett.init()
dist.init_process_group("gloo")
for step in ett.steps(range(8)):
    dist.all_reduce(torch.ones(1))
    if step == 4 and dist.get_rank() == 1 and int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < {n}:
        {dies}
dist.destroy_process_group()
"""


def test_a_killed_rank_is_restarted_by_torchs_agent_and_named(tmp_path: Path) -> None:
    script = TWO_RANKS.format(n=1, dies="os.kill(os.getpid(), signal.SIGKILL)")
    done, reader = run(tmp_path, script, "--max-restarts", "2")
    assert done.returncode == 0, done.stderr
    assert "ett: torchrun is given --max-restarts=2: its agent restarts ranks\n" in done.stderr
    assert [of(attempt) for attempt in reader.job.attempts] == [("SIGKILL", 1), (None, None)]
    assert re.search(r"ett: attempt 1 · step 7 · [\d.]+% effective · 1 failure ·", done.stderr)


def test_the_cause_outlives_the_last_restart(tmp_path: Path) -> None:
    script = TWO_RANKS.format(n=9, dies="os.kill(os.getpid(), signal.SIGKILL)")
    done, reader = run(tmp_path, script, "--max-restarts", "1")
    assert done.returncode == 1
    assert [of(attempt) for attempt in reader.job.attempts] == [("SIGKILL", 1)] * 2
    assert reader.ledger().failures == {"infra": 2, "scheduler": 0, "user": 0}


def test_an_exception_is_the_users_and_its_peers_error_is_not_the_cause(tmp_path: Path) -> None:
    done, reader = run(tmp_path, TWO_RANKS.format(n=9, dies="raise ValueError('bad loss')"))
    assert done.returncode == 1
    assert [of(attempt) for attempt in reader.job.attempts] == [("ValueError: bad loss", 1)]
    assert reader.ledger().failures == {"infra": 0, "scheduler": 0, "user": 1}
    assert "· 0 failures (and 1 by the user) ·" in done.stderr


@pytest.mark.parametrize("torchrun", [True, False])
def test_an_import_that_fails_is_the_users(torchrun: bool, tmp_path: Path) -> None:
    """There is no record of a step, and no advice to mark start-up."""
    done, reader = run(tmp_path, "import no_such_module", torchrun=torchrun)
    assert done.returncode == 1
    (attempt,) = reader.job.attempts
    assert attempt.cause == "ModuleNotFoundError: No module named 'no_such_module'"
    assert reader.ledger().failures == {"infra": 0, "scheduler": 0, "user": 1}
    assert "failed before its first step" in str(reader.history().unrecorded)


def test_an_import_of_a_helper_that_fails_is_no_cause(tmp_path: Path) -> None:
    """A rank may ask a process of its own whether something is installed."""
    script = (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import no_such_module'])\n"
        "sys.exit(1)\n"
    )
    _, reader = run(tmp_path, script, torchrun=False)
    assert [of(attempt) for attempt in reader.job.attempts] == [("exit_1", None)]


def test_two_scripts_in_the_shell_of_one_allocation_are_two_jobs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torchett as ett\nwith ett.step(0): pass\n")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
    shell = {"SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "bash", "SLURM_NTASKS": "8"}
    env = kept | shell | {"SLURM_PROCID": "0", "ETT_RUNS": str(tmp_path / "runs")}
    for _ in range(2):
        subprocess.run([sys.executable, str(script)], env=env, check=True, timeout=60)
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(runs) == 2
    for folder in runs:
        header = (folder / "attempt-0" / "rank-0.ett").read_bytes().splitlines()[0]
        assert json.loads(header)["ranks"] == 1
