"""Segments of a job sum to its ledger, account by account, and do not overlap."""

import json
import random
from collections import Counter
from itertools import pairwise

import pytest
from drawing import attempt, history, in_seconds, span, step
from histories import random_history

from torchett.ledger import History, settle
from torchett.ledger.timeline import timeline
from torchett.runs import events


@pytest.mark.parametrize("seed", range(100))
def test_segments_sum_to_the_ledger(seed: int) -> None:
    lines = [json.dumps(event) for event in random_history(random.Random(seed))]
    history = events.parse(lines)
    ledger = settle(history)
    accounts: Counter[str] = Counter()
    groups: Counter[str] = Counter()
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for piece in timeline(ledger, history).segments():
        assert piece.t1_ns > piece.t0_ns
        accounts[piece.account] += piece.t1_ns - piece.t0_ns
        groups[piece.group] += piece.t1_ns - piece.t0_ns
        lanes.setdefault((piece.attempt, piece.rank), []).append((piece.t0_ns, piece.t1_ns))
    assert dict(accounts) == ledger.accounts
    assert dict(groups) == {group: ns for group, ns in ledger.groups.items() if ns}
    for lane in lanes.values():
        assert all(a[1] == b[0] for a, b in pairwise(lane))


def drawn_segments(drawn: History) -> list[tuple[str, str, float, float]]:
    """Group, account, begin and end of every segment of attempt 0."""
    return [
        (piece.group, piece.account, in_seconds(piece.t0_ns), in_seconds(piece.t1_ns))
        for piece in timeline(settle(drawn), drawn).segments()
        if piece.attempt == 0
    ]


def test_of_a_run_of_steps_that_was_lost_in_part_spans_take_theirs_first() -> None:
    """
    attempt 0   0 evaluation 4 ── steps 0–3 ── 12 ✗         8 s of steps: 4 lost, as booked
    attempt 1                                  12── 2 ──13
    """
    drawn = history(
        attempt(0, start=0, end=12, outcome="failed"),
        step(0, 0, 12, count=4),
        span("evaluation", 0, 4),
        attempt(1, start=12, end=13, outcome="success"),
        step(2, 12, 13, attempt=1),
    )
    assert drawn_segments(drawn) == [
        ("in_loop", "evaluation", 0, 4),
        ("effective", "effective", 4, 8),
        ("unsaved", "unsaved", 8, 12),
    ]


def test_a_users_own_span_is_start_up_until_the_first_step_begins() -> None:
    """
    0────── x-probe ──────4
            2─ step 0 ────────5 end
    """
    drawn = history(
        attempt(0, start=0, end=5, outcome="success"), span("x-probe", 0, 4), step(0, 2, 5)
    )
    assert drawn_segments(drawn) == [
        ("start", "x-probe", 0, 2),
        ("in_loop", "x-probe", 2, 4),
        ("effective", "effective", 4, 5),
    ]
