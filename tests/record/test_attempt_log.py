"""The launcher's own record: lines that are whole, and a sign of life."""

import json
import os
import time
from pathlib import Path

from player import HERE

from torchett.record.attempt_log import AttemptLog, attempts_path, last_beat


def test_every_fact_is_one_line_and_what_is_unknown_is_left_out(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path, job="gpt", node=0, anchor=HERE, ranks=2)
    log.append({"event": "start", "attempt": 0, "t_ns": 5, "allocated_ns": None})
    head, start = map(json.loads, attempts_path(tmp_path).read_text().splitlines())
    assert head["format"] == "attempts/1"
    assert (head["job"], head["node"], head["ranks"]) == ("gpt", 0, 2)
    assert start == {"event": "start", "attempt": 0, "t_ns": 5}


def test_a_resubmitted_job_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for _ in range(2):
        AttemptLog(tmp_path, job="gpt", node=0, anchor=HERE)
    assert len(attempts_path(tmp_path).read_text().splitlines()) == 2


def test_nodes_write_files_of_their_own(tmp_path: Path) -> None:
    for node in range(2):
        AttemptLog(tmp_path, job="gpt", node=node, anchor=HERE)
    assert attempts_path(tmp_path, 0).exists()
    assert attempts_path(tmp_path, 1).exists()


def test_a_beat_is_the_launchers_last_sign_of_life(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path, job="gpt", node=0, anchor=HERE)
    before = time.monotonic_ns()
    log.beat()
    beat = last_beat(tmp_path)
    assert beat is not None
    assert beat[0] == os.getpid()
    assert before <= beat[1] <= time.monotonic_ns()


def test_without_a_beat_there_is_none(tmp_path: Path) -> None:
    assert last_beat(tmp_path) is None
    attempts_path(tmp_path).with_suffix(".beat").write_bytes(b"half")
    assert last_beat(tmp_path) is None


def test_a_beat_that_cannot_be_kept_does_not_stop_the_launcher(tmp_path: Path) -> None:
    """A folder lies where the beat should: the log is written all the same."""
    attempts_path(tmp_path).with_suffix(".beat").mkdir(parents=True)
    log = AttemptLog(tmp_path, job="gpt", node=0, anchor=HERE)
    log.beat()
    assert attempts_path(tmp_path).exists()
