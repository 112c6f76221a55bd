"""Eight histories that a public goodput calculator gets wrong, and what is true of each.

All of them start with 10 s of start-up and train in steps of 1 s.
"""

import json
from typing import Any

from drawing import accounts, attempt, in_seconds, settled, span, step, steps

from torchett.ledger import Ledger, settle
from torchett.runs import events


def percent(ledger: Ledger) -> float:
    return round(ledger.ett_percent, 1)


def test_a_restart_that_loses_no_step_still_costs_its_600_seconds() -> None:
    """
    0 ─ init 10 ─ 100 steps ─ 110 ✗ ┄┄ 600 s down ┄┄ 710 ─ init 10 ─ 100 steps ─ 820 end

    200 ÷ (10 + 100 + 600 + 10 + 100) = 24.4%
    """
    ledger = settled(
        attempt(0, start=0, end=110, outcome="failed"),
        span("imports", 0, 10),
        steps(range(100), t0=10),
        attempt(1, start=710, end=820, outcome="success"),
        span("imports", 710, 720, attempt=1),
        steps(range(100, 200), t0=720, attempt=1),
    )
    assert percent(ledger) == 24.4
    assert ledger.number_of_failures == 1
    assert [in_seconds(time) for time in ledger.time_to_recover_ns] == [610]


def test_a_shutdown_of_300_seconds_after_the_last_step_is_not_training() -> None:
    """
    0 ─ init 10 ─ 100 steps ─ 110 ┄┄ teardown 300 s ┄┄ 410 end

    100 ÷ (10 + 100 + 300) = 24.4%
    """
    ledger = settled(
        attempt(0, start=0, end=410, outcome="success"),
        span("imports", 0, 10),
        steps(range(100), t0=10),
    )
    assert percent(ledger) == 24.4
    assert accounts(ledger)["teardown"] == 300


def test_a_recompile_of_300_seconds_inside_a_step_is_not_training() -> None:
    """
    0 ─ init 10 ─ 100 steps ─ 110 ─ step 100 ────────────── 411 ─ 99 steps ─ 510 end
                                     └ recompile 300 s ┘

    200 ÷ (10 + 200 + 300) = 39.2%
    """
    ledger = settled(
        attempt(0, start=0, end=510, outcome="success"),
        span("imports", 0, 10),
        steps(range(100), t0=10),
        step(100, 110, 411),
        span("recompile", 110.5, 410.5),
        steps(range(101, 200), t0=411),
    )
    assert percent(ledger) == 39.2
    assert accounts(ledger) == {"imports": 10, "effective": 200, "recompile": 300}


def test_a_record_of_every_10th_step_counts_all_ten() -> None:
    """
    0 ─ init 10 ─ 100 records, each of 10 steps in 10 s ─ 1010 end

    1000 ÷ (10 + 1000) = 99.0%
    """
    ledger = settled(
        attempt(0, start=0, end=1010, outcome="success"),
        span("imports", 0, 10),
        [step(10 * i, 10 + 10 * i, 20 + 10 * i, count=10) for i in range(100)],
    )
    assert percent(ledger) == 99.0
    assert ledger.last_step == 999


def test_four_restarts_of_which_three_die_in_init_are_four_failures() -> None:
    """
    attempt 0 ─ 100 steps ✗   1 ─ init ✗   2 ─ init ✗   3 ─ init ✗   4 ─ 100 steps ─ end
    """
    ledger = settled(
        attempt(0, start=0, end=110, outcome="failed"),
        span("imports", 0, 10),
        steps(range(100), t0=10),
        *(attempt(i, start=100 + 10 * i, end=110 + 10 * i, outcome="failed") for i in (1, 2, 3)),
        *(span("imports", 100 + 10 * i, 110 + 10 * i, attempt=i) for i in (1, 2, 3)),
        attempt(4, start=140, end=250, outcome="success"),
        span("imports", 140, 150, attempt=4),
        steps(range(100, 200), t0=150, attempt=4),
    )
    assert ledger.number_of_failures == 4
    assert [in_seconds(time) for time in ledger.time_to_recover_ns] == [150 - 110]
    assert len(ledger.attempts) == 5


def test_two_ranks_that_record_the_same_steps_are_no_failures() -> None:
    """
    rank 0   0 ─ init 10 ─ 10 steps ─ 20 end
    rank 1   0 ─ init 10 ─ 10 steps ─ 20        each index comes twice, and nothing failed
    """
    ledger = settled(
        attempt(0, start=0, end=20, outcome="success", ranks=2),
        *(span("imports", 0, 10, rank=rank) for rank in range(2)),
        *(steps(range(10), t0=10, rank=rank) for rank in range(2)),
        ranks=2,
    )
    assert ledger.number_of_failures == 0
    assert accounts(ledger) == {"imports": 20, "effective": 20}
    assert ledger.ett_percent == 50


def test_a_job_may_end_and_then_be_restarted() -> None:
    """
    attempt 0 ─ init 10 ─ 90 steps ─ 100 end (success)
    attempt 1                        ┊ 100 s ┊ 200 ─ init 10 ─ 90 more ─ 300 end (success)

    180 ÷ 300 = 60%, no failure, and no error
    """
    history: list[dict[str, Any]] = [
        {"event": "job", "format": "events/1", "job": "twice", "ranks": 1},
        {"event": "attempt_start", "attempt": 0, "t": 0},
        {"event": "attempt_end", "attempt": 0, "t": 100, "outcome": "success"},
        {"event": "attempt_start", "attempt": 1, "t": 200},
        {"event": "attempt_end", "attempt": 1, "t": 300, "outcome": "success"},
    ]
    for number in (0, 1):
        begin = 200 * number + 10
        lane = {"event": "step", "attempt": number, "rank": 0}
        history += [
            lane | {"step": 90 * number + i, "t0": begin + i, "t1": begin + i + 1}
            for i in range(90)
        ]
    ledger = settle(events.parse([json.dumps(event) for event in history]))
    assert percent(ledger) == 60.0
    assert ledger.number_of_failures == 0
    assert accounts(ledger)["restart_gap"] == 100


def test_a_restart_from_step_0_wasted_what_came_before() -> None:
    """
    attempt 0 ─ init 10 ─ steps 0–89 ─ 100 ✗
    attempt 1                                ─ 110 ─ steps 0–99 ─ 210 end

    All 90 s of attempt 0 were for nothing.
    """
    ledger = settled(
        attempt(0, start=0, end=100, outcome="failed"),
        span("imports", 0, 10),
        steps(range(90), t0=10),
        attempt(1, start=100, end=210, outcome="success"),
        span("imports", 100, 110, attempt=1),
        steps(range(100), t0=110, attempt=1),
    )
    assert accounts(ledger) == {"imports": 20, "unsaved": 90, "effective": 100}
    (loss,) = ledger.losses
    assert (loss.first_step, loss.last_step, in_seconds(loss.net_ns)) == (0, 89, 90)
