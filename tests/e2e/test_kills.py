"""A dozen SIGKILLs at random moments; `./dev bench kills` does two hundred."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import kills

pytestmark = pytest.mark.e2e


def test_no_finished_step_is_lost_and_no_record_unreadable() -> None:
    result = kills.run(kills=12, seed=7)
    assert result.problems == []
