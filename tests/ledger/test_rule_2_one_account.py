"""Rule 2: one account per instant and rank, by the first that fits."""

import pytest
from drawing import accounts, attempt, history, in_seconds, settled, span, step, steps

from torchett.ledger import Batch, Books, Rows
from torchett.model import Outcome


def test_of_several_spans_the_one_that_began_last_takes_the_time() -> None:
    """
    imports      0──────────────────10
    device_init       2────────6
                 iii  ddddddddd iiii
    """
    ledger = settled(
        attempt(0, start=0, end=10, outcome="success"),
        span("device_init", 2, 6),
        span("imports", 0, 10),
    )
    assert accounts(ledger) == {"imports": 6, "device_init": 4}


def test_of_spans_that_cross_the_later_one_keeps_its_whole_length() -> None:
    """
    imports      0────────6
    device_init       4────────10
                 iiiii dddddddddd
    """
    ledger = settled(
        attempt(0, start=0, end=10, outcome="success"),
        span("imports", 0, 6),
        span("device_init", 4, 10),
    )
    assert accounts(ledger) == {"imports": 4, "device_init": 6}


def test_of_spans_that_begin_together_the_one_that_ends_first_wins() -> None:
    """
    device_init  0────4
    imports      0─────────10       whichever was recorded first
                 dddddiiiiii
    """
    short, long = span("device_init", 0, 4), span("imports", 0, 10)
    for order in ((short, long), (long, short)):
        ledger = settled(attempt(0, start=0, end=10, outcome="success"), *order)
        assert accounts(ledger) == {"device_init": 4, "imports": 6}


def test_of_spans_with_the_same_times_the_later_record_wins() -> None:
    """
    imports      0────4   recorded first
    device_init  0────4   recorded second
                 dddddd
    """
    ledger = settled(
        attempt(0, start=0, end=4, outcome="success"),
        span("imports", 0, 4),
        span("device_init", 0, 4),
    )
    assert accounts(ledger) == {"device_init": 4}


def test_a_background_span_never_takes_time() -> None:
    """
    step 0             0──────────4
    publish (backgr.)     1─────────────6
    end                                 6
    """
    ledger = settled(
        attempt(0, start=0, end=6, outcome="success"),
        step(0, 0, 4),
        span("publish", 1, 6, background=True),
    )
    assert accounts(ledger) == {"effective": 4, "teardown": 2}


def test_a_span_inside_a_step_is_not_training() -> None:
    """
    step 0     0───────────────8
    recompile      2──────5
               ee  rrrrrrr eeee
    """
    ledger = settled(
        attempt(0, start=0, end=8, outcome="success"), step(0, 0, 8), span("recompile", 2, 5)
    )
    assert accounts(ledger) == {"effective": 5, "recompile": 3}


def test_before_the_attempts_start_it_is_hardware_setup_then_restart_gap() -> None:
    """
    attempt 0   0 allocated ── 3 start ── 4 end
    attempt 1                             ┊── 6 start ── 8 end
    """
    ledger = settled(
        attempt(0, allocated=0, start=3, end=4, outcome="failed"),
        attempt(1, start=6, end=8, outcome="success"),
    )
    assert accounts(ledger) == {"hardware_setup": 3, "restart_gap": 2, "unattributed": 3}


def test_a_span_takes_time_before_the_attempts_start_too() -> None:
    """
    0 allocated ─────────────── 5 start ── 6 end
       1 ─ scheduling ─ 3
    """
    ledger = settled(
        attempt(0, allocated=0, start=5, end=6, outcome="success"), span("scheduling", 1, 3)
    )
    assert accounts(ledger) == {"hardware_setup": 3, "scheduling": 2, "unattributed": 1}


def test_a_step_takes_no_time_before_the_attempts_start() -> None:
    """
    0 allocated ─── 4 start ─────── 8 end
            2 ──── step 0 ──── 6
    """
    ledger = settled(attempt(0, allocated=0, start=4, end=8, outcome="success"), step(0, 2, 6))
    assert accounts(ledger) == {"hardware_setup": 4, "effective": 2, "teardown": 2}


def test_overlapping_steps_tie_like_spans() -> None:
    """
    step 0   0─────────────────10      kept
    step 9        3──────7             lost: the next attempt resumes at 1
             eeee uuuuuuu eeeee
    """
    ledger = settled(
        attempt(0, start=0, end=10, outcome="failed"),
        step(0, 0, 10),
        step(9, 3, 7),
        attempt(1, start=10, end=11, outcome="success"),
        step(1, 10, 11, attempt=1),
    )
    assert accounts(ledger) == {"effective": 6 + 1, "unsaved": 4}


def test_a_rank_without_any_record_is_unattributed() -> None:
    """
    rank 0   0─ step 0 ─4 end
    rank 1   0 ┄┄┄┄┄┄┄┄ 4
    """
    ledger = settled(attempt(0, start=0, end=4, outcome="success", ranks=2), step(0, 0, 4), ranks=2)
    assert accounts(ledger) == {"effective": 4, "unattributed": 4}


def test_a_rank_without_a_step_is_unattributed_where_no_span_is() -> None:
    """
    imports 0──3      ┄┄ 5 end (failed): no detect, there was no progress to lose
    """
    ledger = settled(attempt(0, start=0, end=5, outcome="failed"), span("imports", 0, 3))
    assert accounts(ledger) == {"imports": 3, "unattributed": 2}


def test_before_the_first_step_is_unattributed_and_between_steps_other_in_loop() -> None:
    """
    0 start ┄┄ 2 ─ step 0 ─ 4 ┄┄┄ 7 ─ step 1 ─ 8 end
      unattributed           other_in_loop
    """
    ledger = settled(attempt(0, start=0, end=8, outcome="success"), step(0, 2, 4), step(1, 7, 8))
    assert accounts(ledger) == {"unattributed": 2, "effective": 3, "other_in_loop": 3}


def test_first_and_last_step_are_each_ranks_own() -> None:
    """
    rank 0   0─ step 0 ─2 ─ step 1 ─ 4 ┄┄┄ teardown ┄┄┄ 6
    rank 1   0 ┄ unattr. ┄ 2 ─ step 0 ─ 4 ─ step 1 ─ 6 end
    """
    ledger = settled(
        attempt(0, start=0, end=6, outcome="success", ranks=2),
        steps(range(2), t0=0, each=2),
        steps(range(2), t0=2, each=2, rank=1),
        ranks=2,
    )
    assert accounts(ledger) == {"effective": 8, "teardown": 2, "unattributed": 2}


@pytest.mark.parametrize(
    ("outcome", "account"),
    [("success", "teardown"), ("failed", "detect"), ("preempted", "detect")],
)
def test_after_the_last_step_it_depends_on_how_the_attempt_ended(
    outcome: Outcome, account: str
) -> None:
    """
    step 0 0──2 ┄┄┄┄ 5 end         the step itself is kept or lost by rule 3
    """
    ledger = settled(attempt(0, start=0, end=5, outcome=outcome), step(0, 0, 2))
    assert accounts(ledger)[account] == 3


def test_after_the_last_step_of_an_attempt_that_vanished_is_detect() -> None:
    """
    attempt 0   0─ step 0 ─2 ┄┄ 5 last seen (a background span)
    attempt 1                   ┊ 6 start ─ step 1 ─ 7 end
    """
    ledger = settled(
        attempt(0, start=0),
        step(0, 0, 2),
        span("publish", 1, 5, background=True),
        attempt(1, start=6, end=7, outcome="success"),
        step(1, 6, 7, attempt=1),
    )
    assert accounts(ledger) == {"effective": 3, "detect": 3, "restart_gap": 1}


def test_after_the_last_step_of_a_running_attempt_is_other_in_loop() -> None:
    """
    step 0 0──2 ┄┄┄┄ 5 now
    """
    ledger = settled(attempt(0, start=0), step(0, 0, 2), now=5)
    assert accounts(ledger) == {"effective": 2, "other_in_loop": 3}


def test_the_last_step_is_the_one_that_ends_latest() -> None:
    """
    step 0   0──────────────8
    step 1        2───4            began later, ended earlier
    end                        9
    """
    ledger = settled(attempt(0, start=0, end=9, outcome="success"), step(0, 0, 8), step(1, 2, 4))
    assert accounts(ledger) == {"effective": 8, "teardown": 1}


def test_records_are_clipped_to_what_the_attempt_owns() -> None:
    """
    imports  -3─────2
    start           0                          10 end
    step 0               3──5
    final_checkpoint               8────────────────14
    """
    ledger = settled(
        attempt(0, start=0, end=10, outcome="success"),
        span("imports", -3, 2),
        step(0, 3, 5),
        span("final_checkpoint", 8, 14),
    )
    assert accounts(ledger) == {
        "imports": 2,
        "unattributed": 1,
        "effective": 2,
        "teardown": 3,
        "final_checkpoint": 2,
    }


def test_order_is_by_recorded_times_not_by_clipped_ones() -> None:
    """
    imports      -5───────────────10
    device_init     -3──────────────────20      began later, so it wins all of it
    start              0                20 end
    """
    ledger = settled(
        attempt(0, start=0, end=20, outcome="success"),
        span("imports", -5, 10),
        span("device_init", -3, 20),
    )
    assert accounts(ledger) == {"device_init": 20}


def test_what_lies_wholly_outside_is_ignored() -> None:
    """
    step 7  -4──-1     0 start ─ step 0 1──3 ─ 5 end     6──8 step 9
    """
    ledger = settled(
        attempt(0, start=0, end=5, outcome="success"),
        step(7, -4, -1),
        step(0, 1, 3),
        step(9, 6, 8),
    )
    assert accounts(ledger) == {"unattributed": 1, "effective": 2, "teardown": 2}
    assert ledger.attempts[0].first_step == 0
    assert ledger.last_step == 0


def test_a_ranks_first_step_begins_earliest_and_on_a_tie_has_the_lower_index() -> None:
    """
    step 5   0────4
    step 3   0──────6       the lower index: the attempt resumed at 3
    """
    ledger = settled(attempt(0, start=0, end=6, outcome="success"), step(5, 0, 4), step(3, 0, 6))
    assert ledger.attempts[0].first_step == 3
    assert in_seconds(ledger.accounts["effective"]) == 6


def test_a_span_that_is_not_over_counts_from_its_begin_however_many_rows_came_since() -> None:
    """
    evaluation   0──────────────────────────────── …       seen so far: a live rank's open span
    data_wait     1─1½ 2─2½ 3─3½ …                          2,999 of them in its log
    """
    inside = [span("data_wait", t, t + 0.5) for t in range(1, 3_000)]
    logged = history(attempt(0, start=0), *inside)
    still_open = Rows.from_values([span("evaluation", 0, 3_000)], logged.accounts)
    books = Books(logged.accounts)
    for part in (slice(0, 2_900), slice(2_900, None)):
        books.post(Batch(rows=logged.rows.take(part)))
        ledger = books.settle(logged.job, provisional=Batch(rows=still_open))
        assert sum(ledger.accounts.values()) == ledger.rank_ns
    assert accounts(ledger) == {"evaluation": 1_500.5, "data_wait": 1_499.5}
