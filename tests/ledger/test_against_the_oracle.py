"""The ledger agrees with a slow oracle that walks every rank's timeline tick by tick."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchett.ledger import Batch, Books, Ledger, Rows, settle
from torchett.ledger.history import History
from torchett.runs import events

sys.path.insert(0, str(Path(__file__).parent))
from histories import TICK_NS, random_history
from oracle import oracle

SEEDS = 16
HISTORIES_PER_SEED = 250


def parsed(history: list[dict[str, Any]]) -> History:
    return events.parse([json.dumps(event) for event in history])


def facts(ledger: Ledger) -> dict[str, Any]:
    """The ledger in the oracle's words: integer nanoseconds, zero accounts left out."""
    return {
        "job": ledger.job,
        "ett_percent": ledger.ett_percent,
        "window_ns": ledger.window_ns,
        "queue_ns": ledger.window.queue_ns,
        "ranks": ledger.ranks,
        "attempts": len(ledger.attempts),
        "failures": ledger.failures,
        "time_to_start_ns": ledger.time_to_start_ns,
        "time_to_recover_ns": list(ledger.time_to_recover_ns),
        "at_risk_ns": ledger.at_risk_ns,
        "requeue_ns": ledger.window.requeue_ns,
        "last_step": ledger.last_step,
        "rank_ns": ledger.rank_ns,
        "accounts": ledger.accounts,
        "groups": ledger.groups,
    }


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_ledger_is_what_the_oracle_sees(seed: int) -> None:
    rng = random.Random(seed)
    for case in range(HISTORIES_PER_SEED):
        history = random_history(rng)
        expected = oracle(history, TICK_NS)
        found = facts(settle(parsed(history)))
        found["ett_percent"] = pytest.approx(found["ett_percent"])
        assert expected == found, f"seed {seed}, case {case}"
        assert sum(found["accounts"].values()) == found["rank_ns"]
        assert sum(found["groups"].values()) == found["rank_ns"]


@pytest.mark.parametrize("seed", range(4))
def test_books_kept_event_by_event_end_up_the_same(seed: int, monkeypatch: Any) -> None:
    """However rows arrive, and however often the books are settled in between."""
    monkeypatch.setattr("torchett.ledger.books._TAIL_ROWS", 1)
    rng = random.Random(1000 + seed)
    for case in range(60):
        whole = parsed(random_history(rng))
        order = list(range(len(whole.rows)))
        if rng.random() < 0.7:
            order.sort(key=lambda i: int(whole.rows.t1_ns[i]))
        books = Books(whole.accounts)
        shuffled = whole.rows.take(np.array(order, dtype=np.int64))
        at = 0
        while at < len(shuffled):
            more = rng.randint(1, 4)
            if rng.random() < 0.5:
                yet_to_come = Batch(rows=shuffled.take(slice(at + more, None)))
                books.settle(whole.job, whole.now_ns, yet_to_come)
            books.post(Batch(rows=shuffled.take(slice(at, at + more))))
            if rng.random() < 0.5:
                books.settle(whole.job, whole.now_ns)
            at += more
        books.post(Batch(rows=Rows.none(), checkpoints=whole.checkpoints))
        again = History(
            job=whole.job,
            rows=shuffled,
            accounts=whole.accounts,
            checkpoints=whole.checkpoints,
            now_ns=whole.now_ns,
        )
        kept = facts(books.settle(whole.job, whole.now_ns))
        assert kept == facts(settle(again)), f"seed {seed}, case {case}"
