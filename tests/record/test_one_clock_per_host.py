"""Clocks: durations are monotonic, an anchor says where they lie in wall time."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from trainers import records, train

from torchett.record.clock import Anchor, anchor, process_start_ns


def test_an_anchor_places_monotonic_time_on_the_wall_clock() -> None:
    here = anchor()
    before = time.time_ns()
    wall = time.monotonic_ns() + here.offset_ns
    after = time.time_ns()
    slack = 50_000_000  # an adjustment of the clock in between; far below any wrong unit
    assert before - slack <= wall <= after + slack


def test_processes_of_one_host_share_a_clock() -> None:
    """Another process of this boot names the same clock, so one anchor places both."""
    script = "from torchett.record.clock import anchor; a = anchor(); print(a.clock, a.host)"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert other.stdout.split() == [anchor().clock, anchor().host]


def test_ranks_of_one_torchrun_agree_on_when_their_job_began(tmp_path: Path) -> None:
    """However the wall clock moved between the start of one rank and of the next.

    rank 0            ├── asks when the agent began ──
    wall clock             ~~ stepped by 3 s ~~
    rank 1                               ├── asks again: the same job, the same folder
    """
    for rank, stepped_ns in enumerate((0, 3_000_000_000)):
        script = f"""
import time
wall = time.time_ns
time.time_ns = lambda: wall() + {stepped_ns}
ett.init()
"""
        torchrun = {"TORCHELASTIC_RUN_ID": "none", "RANK": str(rank), "WORLD_SIZE": "2"}
        assert train(script, tmp_path, torchrun).stderr == ""
    assert len(records(tmp_path)) == 2
    assert len(list(tmp_path.iterdir())) == 1


def test_an_anchor_survives_the_way_through_a_header() -> None:
    here = anchor()
    assert Anchor.from_json(json.loads(json.dumps(here.to_json()))) == here


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "here",
        [],
        {},
        {"host": "a", "clock": "b", "wall_ns": 1},
        {"host": "a", "clock": "b", "wall_ns": None, "mono_ns": 1},
        {"host": "a", "clock": "b", "wall_ns": "soon", "mono_ns": 1},
        {"host": "a", "clock": "b", "wall_ns": float("inf"), "mono_ns": 1},
        {"host": "a", "clock": "b", "wall_ns": float("nan"), "mono_ns": 1},
    ],
)
def test_what_is_no_anchor_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError, match=r"anchor|invalid|NaN|infinity"):
        Anchor.from_json(value)


def test_a_process_knows_when_it_began() -> None:
    """To a hundredth of a second, on the monotonic clock."""
    began = process_start_ns()
    assert began is not None
    assert began < time.monotonic_ns()
    assert began == pytest.approx(process_start_ns(os.getpid()), abs=1_000_000)
    parent = process_start_ns(os.getppid())
    assert parent is not None
    assert parent <= began


def test_the_start_of_an_unknown_process_is_not_guessed() -> None:
    assert process_start_ns(2**22 + 1) is None
