"""What a stock torchrun's workers raised becomes the cause of the attempt it ended."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchett.launch.elastic.error_files import failures, log_folder, restarts

TORCHRUN = "/env/bin/torchrun"


def test_the_users_own_log_folder_is_read_and_nothing_changed(tmp_path: Path) -> None:
    for words in (["--log-dir", "/x"], ["--log_dir=/x"]):
        assert log_folder([TORCHRUN, *words, "a.py"], {}, tmp_path) == (Path("/x"), {})
    assert log_folder([TORCHRUN], {"PET_LOG_DIR": "/y"}, tmp_path) == (Path("/y"), {})


def test_without_one_the_run_folder_takes_the_error_files(tmp_path: Path) -> None:
    assert log_folder([TORCHRUN, "a.py"], {}, tmp_path) == (
        tmp_path,
        {"PET_LOG_DIR": str(tmp_path)},
    )


def test_redirected_logs_and_other_commands_are_left_alone(tmp_path: Path) -> None:
    assert log_folder([TORCHRUN, "-r", "3", "a.py"], {}, tmp_path) == (None, {})
    assert log_folder([TORCHRUN, "--tee=3", "a.py"], {}, tmp_path) == (None, {})
    assert log_folder(["python", "a.py"], {}, tmp_path) == (None, {})


def error(folder: Path, restart: int, rank: int, text: Any, at: int) -> None:
    path = folder / "none_x" / f"attempt_{restart}" / str(rank) / "error.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(text))
    os.utime(path, ns=(at, at))


def test_the_first_error_of_each_restart_counts(tmp_path: Path) -> None:
    error(tmp_path, 0, 1, {"message": {"message": "RuntimeError: later"}}, 20)
    error(tmp_path, 0, 0, {"message": {"message": "ValueError: first\n  here"}}, 10)
    error(tmp_path, 1, 0, {"message": "SIGSEGV"}, 30)
    error(tmp_path, 2, 0, ["no"], 40)
    found = [(f.restart, f.local_rank, f.text, f.wall_ns) for f in failures(tmp_path)]
    assert found == [(0, 0, "ValueError: first here", 10), (1, 0, "SIGSEGV", 30)]
    assert [f.restart for f in failures(tmp_path, since_ns=25)] == [1]
    assert sorted(restarts(tmp_path)) == [0, 1, 2]
    assert restarts(tmp_path, since_ns=1 << 62) == {}


SCRIPT = """
import os, sys, torchett as ett
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    for _ in ett.steps(range(3)) if sys.argv[1:] else ():
        pass
    raise RuntimeError("boom " + os.environ["TORCHELASTIC_RESTART_COUNT"])

main()
"""


@pytest.mark.e2e
@pytest.mark.parametrize("recorded", [True, False])
def test_a_stock_torchrun_as_is(recorded: bool, tmp_path: Path) -> None:
    """Its restarts and their causes are known whether the script records anything or not."""
    (tmp_path / "train.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--monitor-interval", "0.1"]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "SLURM_", "PET_"))}
    env |= {"ETT_RUNS": str(tmp_path / "runs")}
    done = subprocess.run(
        [sys.executable, "-m", "torchett.cli.main", "run", "--as-is", "--job", "a", "--",
         *torchrun, "--max-restarts", "1", "train.py", *(["record"] if recorded else [])],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    from torchett.runs.reader import RunReader

    attempts = RunReader(tmp_path / "runs" / "a").poll().job.attempts
    causes = [attempt.cause for attempt in attempts]
    assert causes == ["RuntimeError: boom 0", "RuntimeError: boom 1"]
    assert [attempt.outcome for attempt in attempts] == ["failed", "failed"]
    assert attempts[0].end_ns <= attempts[1].start_ns < attempts[1].end_ns
