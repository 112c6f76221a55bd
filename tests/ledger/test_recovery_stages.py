"""The way back to training, taken apart: every nanosecond of it in one stage."""

from itertools import pairwise

import numpy as np
import pytest

from torchett.ledger.history import History, settle
from torchett.ledger.rows import AccountTable, Rows
from torchett.ledger.rules.recovery_stages import recoveries
from torchett.model.values import Attempt, Job, Span, Step


def history(attempts: list[Attempt], rows: list[Span | Step], ranks: int = 1) -> History:
    accounts = AccountTable()
    return History(
        job=Job(name="a", ranks=ranks, attempts=tuple(attempts)),
        rows=Rows.from_values(rows, accounts),
        accounts=accounts,
    )


def span(attempt: int, account: str, t0: int, t1: int, rank: int = 0) -> Span:
    return Span(attempt=attempt, rank=rank, account=account, t0_ns=t0, t1_ns=t1)


def step(attempt: int, index: int, t0: int, t1: int, rank: int = 0) -> Step:
    return Step(attempt=attempt, rank=rank, index=index, t0_ns=t0, t1_ns=t1)


def failed(number: int, start: int, end: int, ranks: int = 1, **more: int) -> Attempt:
    return Attempt(number=number, start_ns=start, end_ns=end, outcome="failed", ranks=ranks, **more)


def drawn() -> History:
    """
    0         10        20        30        40        50        60
    │launch│imp│ step 0 │ step 1 │det│stop│launch│imp│restore│compile·step│
    """
    return history(
        [failed(0, 0, 30), failed(1, 34, 80)],
        [
            span(0, "launcher_init", 0, 4),
            span(0, "imports", 4, 7),
            step(0, 0, 7, 17),
            step(0, 1, 17, 25),
            span(1, "launcher_init", 34, 37),
            span(1, "imports", 37, 42),
            span(1, "checkpoint_restore", 42, 54),
            step(1, 2, 55, 66),
            span(1, "pt2_compile", 56, 60),
            step(1, 3, 66, 72),
        ],
    )


def test_the_stages_are_those_of_the_drawing_and_sum_to_time_to_recover() -> None:
    known = drawn()
    ledger = settle(known)
    start, recovery = recoveries(ledger, known)
    assert recovery.stages == {
        "detect": 5, "stop": 4, "rendezvous": 3, "imports": 5, "restore": 12, "compile": 4,
        "other": 1,
    }  # fmt: skip
    assert (recovery.total_ns,) == ledger.time_to_recover_ns
    assert recovery.slowest == "restore"
    assert recovery.first_step_ns == 7
    assert start.stages == {"rendezvous": 4, "imports": 3}
    assert start.total_ns == ledger.time_to_start_ns


def test_hardware_given_back_is_schedule_and_a_failed_start_is_one() -> None:
    known = history(
        [failed(0, 0, 20), failed(1, 25, 40, allocated_ns=22), failed(2, 41, 60)],
        [step(0, 0, 5, 15), span(1, "imports", 25, 40), step(2, 1, 50, 55)],
    )
    ledger = settle(known)
    _, recovery = recoveries(ledger, known)
    assert recovery.stages == {
        "detect": 5, "stop": 1, "schedule": 2, "failed_starts": 18, "other": 9,
    }  # fmt: skip
    assert (recovery.total_ns,) == ledger.time_to_recover_ns


def test_the_rank_is_the_one_that_makes_progress_first() -> None:
    known = history(
        [failed(0, 0, 30, 2), failed(1, 30, 90, 2)],
        [
            *[step(0, 0, 10, 20, rank) for rank in range(2)],
            span(1, "imports", 30, 60, 0),
            span(1, "imports", 30, 40, 1),
            step(1, 1, 60, 70, 0),
            step(1, 1, 40, 50, 1),
        ],
        ranks=2,
    )
    ledger = settle(known)
    _, recovery = recoveries(ledger, known)
    assert (recovery.rank, recovery.stages["imports"]) == (1, 10)


def test_without_a_step_there_is_nothing_to_take_apart() -> None:
    known = history([failed(0, 0, 30)], [span(0, "imports", 0, 20)])
    assert recoveries(settle(known), known) == []


@pytest.mark.parametrize("seed", range(40))
def test_stages_always_sum_to_the_ledgers_own_figure(seed: int) -> None:
    pick = np.random.default_rng(seed)
    attempts, rows = [], []
    at = 0
    names = ("launcher_init", "imports", "checkpoint_restore", "pt2_compile", "x-mine")
    for number in range(int(pick.integers(2, 6))):
        begin = at + int(pick.integers(0, 9))
        end = begin + int(pick.integers(30, 90))
        attempts.append(failed(number, begin, end, 2))
        for rank in range(2):
            for _ in range(6):
                t0, t1 = sorted(pick.integers(begin, end, 2))
                rows.append(span(number, names[int(pick.integers(5))], int(t0), int(t1), rank))
            if pick.random() < 0.7:
                edges = sorted(int(t) for t in pick.integers(begin, end, 4))
                rows += [
                    step(number, i, t0, t1, rank) for i, (t0, t1) in enumerate(pairwise(edges))
                ]
        at = end
    known = history(attempts, rows, ranks=2)
    ledger = settle(known)
    found = recoveries(ledger, known)
    if ledger.time_to_start_ns is not None:
        assert found[0].total_ns == ledger.time_to_start_ns
    assert tuple(one.total_ns for one in found[1:]) == ledger.time_to_recover_ns
