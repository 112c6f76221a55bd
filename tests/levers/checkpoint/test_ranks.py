"""Several ranks: one checkpoint, any other number of ranks, errors that reach all of them."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def world(scenario: str, folder: Path) -> str:
    """What world.py says of a scenario; it forks the ranks and compares what they find."""
    command = [sys.executable, str(HERE / "world.py"), scenario, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.e2e
def test_four_ranks_write_and_one_two_three_read(tmp_path: Path) -> None:
    said = world("reshard", tmp_path)
    assert said.count("same as on 4") == 6
    assert said.count("refused") == 3


@pytest.mark.e2e
def test_an_error_reaches_every_rank_and_a_killed_upload_process_is_replaced(
    tmp_path: Path,
) -> None:
    said = world("rank_errors", tmp_path)
    assert "heard on all ranks" in said
    assert "saved by the new process" in said


@pytest.mark.e2e
def test_what_each_rank_names_for_itself_comes_back_to_it(tmp_path: Path) -> None:
    assert world("apart", tmp_path).count("has its own") == 2


@pytest.mark.e2e
def test_what_is_saved_before_the_upload_processes_are_ready_is_safe(tmp_path: Path) -> None:
    assert world("early", tmp_path).count("safe") == 2


@pytest.mark.e2e
def test_a_state_that_cannot_be_had_on_one_rank_keeps_nobody_waiting(tmp_path: Path) -> None:
    assert world("odd", tmp_path).count("went on") == 2


@pytest.mark.e2e
def test_what_ranks_have_told_each_other_does_not_pile_up(tmp_path: Path) -> None:
    assert world("keys", tmp_path).count("keys") == 2


@pytest.mark.e2e
def test_every_rank_copies_its_own_files_to_the_second_tier(tmp_path: Path) -> None:
    assert world("flush", tmp_path).count("flushed") == 2
