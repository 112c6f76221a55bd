"""Slices of a job sum to its ledger, account by account, and do not overlap."""

import json
import random
from collections import Counter
from itertools import pairwise

import pytest
from histories import random_history

from torchett.ledger import settle
from torchett.ledger.slices import slices
from torchett.runs import events


@pytest.mark.parametrize("seed", range(100))
def test_slices_sum_to_the_ledger(seed: int) -> None:
    lines = [json.dumps(event) for event in random_history(random.Random(seed))]
    history = events.parse(lines)
    ledger = settle(history)
    accounts: Counter[str] = Counter()
    groups: Counter[str] = Counter()
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for piece in slices(ledger, history):
        assert piece.t1_ns > piece.t0_ns
        accounts[piece.account] += piece.t1_ns - piece.t0_ns
        groups[piece.group] += piece.t1_ns - piece.t0_ns
        lanes.setdefault((piece.attempt, piece.rank), []).append((piece.t0_ns, piece.t1_ns))
    assert dict(accounts) == ledger.accounts
    assert dict(groups) == {group: ns for group, ns in ledger.groups.items() if ns}
    for lane in lanes.values():
        assert all(a[1] == b[0] for a, b in pairwise(lane))
