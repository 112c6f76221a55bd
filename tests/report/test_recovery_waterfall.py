"""The waterfall of all recoveries sums to what the failures cost."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import itertools

from _histories import Long

from torchett.ledger import settle
from torchett.ledger.history import History
from torchett.ledger.metrics.losses import failure_costs
from torchett.ledger.rows import AccountTable
from torchett.report.pages.recovery import recovery


def test_it_sums_to_the_failures_costs_in_the_order_they_were_paid() -> None:
    job = Long(steps=500, restarts=4)
    history = History(
        job=job.job(), rows=job.rows(), accounts=AccountTable(), checkpoints=job.checkpoints()
    )
    ledger = settle(history)
    costs = failure_costs(ledger)
    assert len(costs) == 4
    steps = recovery(ledger, costs)
    assert sum(one.seconds for one in steps) == pytest.approx(sum(c.total_ns for c in costs) / 1e9)
    names = [one.name for one in steps]
    assert names[:2] == ["detect", "restart_gap"]
    assert names[-1] == "unsaved"
    for one, following in itertools.pairwise(steps):
        assert following.x == pytest.approx(one.x + one.width, abs=1.1)
