"""Rule 4: Time to Start, Time to Recover, and the groups."""

from drawing import attempt, groups, in_seconds, settled, span, step, steps

from torchett.ledger import Ledger


def to_start(ledger: Ledger) -> float | None:
    return None if ledger.time_to_start_ns is None else in_seconds(ledger.time_to_start_ns)


def to_recover(ledger: Ledger) -> list[float]:
    return [in_seconds(time) for time in ledger.time_to_recover_ns]


def test_time_to_start_runs_from_the_window_to_the_first_progress() -> None:
    """
    0 allocated ── 2 start ── imports 5 ── 6 ─ step 0 ─ 8 end
    """
    ledger = settled(
        attempt(0, allocated=0, start=2, end=8, outcome="success"),
        span("imports", 2, 5),
        step(0, 6, 8),
    )
    assert to_start(ledger) == 6


def test_a_compile_inside_the_first_step_belongs_to_the_start() -> None:
    """
    step 0        1────────────────────────12
    pt2_compile      2─────────────10
                  e                 ee      3 s of the step are training, so it began at 12 − 3
    """
    ledger = settled(
        attempt(0, start=0, end=12, outcome="success"),
        step(0, 1, 12),
        span("pt2_compile", 2, 10),
    )
    assert to_start(ledger) == 9


def test_progress_that_was_lost_later_is_progress_all_the_same() -> None:
    """
    attempt 0   1 ─ step 0 ─ 3 ✗      unsaved in the end, but it began at 1
    """
    ledger = settled(attempt(0, start=0, end=4, outcome="failed"), step(0, 1, 3))
    assert to_start(ledger) == 1


def test_progress_begins_on_the_rank_whose_first_step_ends_first() -> None:
    """
    rank 0   1────── step 0 ──────6        begins first, ends last
    rank 1        3── step 0 ──5           ends first: progress began at 3
    """
    ledger = settled(
        attempt(0, start=0, end=6, outcome="success", ranks=2),
        step(0, 1, 6),
        step(0, 3, 5, rank=1),
        ranks=2,
    )
    assert to_start(ledger) == 3


def test_of_first_steps_that_end_together_the_lower_rank_counts() -> None:
    """
    rank 0   1────── step 0 ──────6
    rank 1        3── step 0 ─────6
    """
    ledger = settled(
        attempt(0, start=0, end=6, outcome="success", ranks=2),
        step(0, 3, 6, rank=1),
        step(0, 1, 6),
        ranks=2,
    )
    assert to_start(ledger) == 1


def test_a_job_that_never_made_a_step_has_no_time_to_start() -> None:
    """
    imports 0──3 ✗
    """
    ledger = settled(attempt(0, start=0, end=3, outcome="failed"), span("imports", 0, 3))
    assert to_start(ledger) is None
    assert to_recover(ledger) == []


def test_time_to_recover_runs_from_the_last_step_to_the_next_progress() -> None:
    """
    attempt 0, rank 0   0─ step 0 ─2 ┄┄┄┄┄ 7 ✗
               rank 1   0─── step 0 ──4 ┄┄ 7       the latest end of a step: 4
    attempt 1, rank 0                      ┊ 9 start ── 11 ─ step 1 (1 s of it pt2_compile) ─ 14
               rank 1                                   12 ─ step 1 ───────────────────────── 15
    """
    ledger = settled(
        attempt(0, start=0, end=7, outcome="failed", ranks=2),
        step(0, 0, 2),
        step(0, 0, 4, rank=1),
        attempt(1, start=9, end=15, outcome="success", ranks=2),
        step(1, 11, 14, attempt=1),
        span("pt2_compile", 11, 12, attempt=1),
        step(1, 12, 15, attempt=1, rank=1),
        ranks=2,
    )
    assert to_recover(ledger) == [(14 - 2) - 4]


def test_attempts_without_a_step_belong_to_one_recovery() -> None:
    """
    attempt 0   0─ step 0 ─2 ✗
    attempt 1                  4 ─ imports ─ 5 ✗
    attempt 2                                     6 ─ imports ─ 7 ✗
    attempt 3                                                       8 ─ step 1 ─ 9 ✗
    attempt 4                                                                       11 ─ step 2 ─
    """
    ledger = settled(
        attempt(0, start=0, end=2, outcome="failed"),
        step(0, 0, 2),
        attempt(1, start=4, end=5, outcome="failed"),
        span("imports", 4, 5, attempt=1),
        attempt(2, start=6, end=7, outcome="failed"),
        span("imports", 6, 7, attempt=2),
        attempt(3, start=8, end=9, outcome="failed"),
        step(1, 8, 9, attempt=3),
        attempt(4, start=11, end=12, outcome="success"),
        step(2, 11, 12, attempt=4),
    )
    assert to_recover(ledger) == [8 - 2, 11 - 9]


def test_time_to_start_spans_attempts_that_died_before_their_first_step() -> None:
    """
    attempt 0   0 ─ imports ─ 3 ✗
    attempt 1                     5 ─ imports ─ 6 ─ step 0 ─ 8 end
    """
    ledger = settled(
        attempt(0, start=0, end=3, outcome="failed"),
        span("imports", 0, 3),
        attempt(1, start=5, end=8, outcome="success"),
        span("imports", 5, 6, attempt=1),
        step(0, 6, 8, attempt=1),
    )
    assert to_start(ledger) == 6
    assert to_recover(ledger) == []


def test_start_accounts_are_start_until_a_step_was_made_and_recover_afterwards() -> None:
    """
    attempt 0   0 allocated ─ 1 ─ imports ─ 2 ✗                            start: 2
    attempt 1              restart_gap 1 ┊ 3 ─ imports ─ 5 ─ step 0 ─ 6 ✗  start: 1 + 2
    attempt 2              restart_gap 1 ┊ 7 ─ imports ─ 8 ✗               recover: 1 + 1
    attempt 3              restart_gap 1 ┊ 9 ─ imports ─ 10 ─ step 1 ─ 11  recover: 1 + 1
    """
    ledger = settled(
        attempt(0, allocated=0, start=1, end=2, outcome="failed"),
        span("imports", 1, 2),
        attempt(1, start=3, end=6, outcome="failed"),
        span("imports", 3, 5, attempt=1),
        step(0, 5, 6, attempt=1),
        attempt(2, start=7, end=8, outcome="failed"),
        span("imports", 7, 8, attempt=2),
        attempt(3, start=9, end=11, outcome="success"),
        span("imports", 9, 10, attempt=3),
        step(1, 10, 11, attempt=3),
    )
    assert groups(ledger) == {"start": 5, "recover": 4, "effective": 2}


def test_a_start_account_after_the_first_step_is_start_all_the_same() -> None:
    """
    step 0 0──1 ─ checkpoint_restore ─ 3 ─ step 1 ─ 4 end
    """
    ledger = settled(
        attempt(0, start=0, end=4, outcome="success"),
        step(0, 0, 1),
        span("checkpoint_restore", 1, 3),
        step(1, 3, 4),
    )
    assert groups(ledger) == {"effective": 2, "start": 2}


def test_detect_is_always_recover() -> None:
    """
    attempt 0   0─ step 0 ─1 ┄ detect ┄ 4 ✗        even in the first attempt that has a step
    """
    ledger = settled(attempt(0, start=0, end=4, outcome="failed"), step(0, 0, 1))
    assert groups(ledger) == {"unsaved": 1, "recover": 3}


def test_accounts_of_the_loop_and_the_shutdown_stay_there_wherever_they_fall() -> None:
    """
    0 ─ data_wait ─ 1 ─ step 0 ─ 2 ─ publish ─ 4 ┄ teardown ┄ 5 end
    """
    ledger = settled(
        attempt(0, start=0, end=5, outcome="success"),
        span("data_wait", 0, 1),
        step(0, 1, 2),
        span("publish", 2, 4),
    )
    assert groups(ledger) == {"in_loop": 1, "effective": 1, "shutdown": 3}


def test_a_users_own_account_is_start_before_the_first_step_and_in_loop_after() -> None:
    """
    x-warmup  0──────────────4              0–3 start, 3–4 in the loop
    step 0                3─────────6
    x-warmup                          7──9  in the loop
    """
    ledger = settled(
        attempt(0, start=0, end=9, outcome="success"),
        span("x-warmup", 0, 4),
        step(0, 3, 6),
        span("x-warmup", 7, 9),
    )
    assert groups(ledger) == {"start": 3, "in_loop": 1 + 2, "effective": 2, "shutdown": 1}


def test_a_users_own_account_is_start_on_a_rank_without_a_step() -> None:
    """
    rank 0   0─ step 0 ─2
    rank 1   0─ x-probe ─2 end
    """
    ledger = settled(
        attempt(0, start=0, end=2, outcome="success", ranks=2),
        step(0, 0, 2),
        span("x-probe", 0, 2, rank=1),
        ranks=2,
    )
    assert groups(ledger) == {"effective": 2, "start": 2}


def test_a_users_own_account_is_recover_before_the_first_step_of_a_later_attempt() -> None:
    """
    attempt 0   0─ step 0 ─1 ✗
    attempt 1               1 ─ x-probe ─ 3 ─ step 1 ─ 4 end
    """
    ledger = settled(
        attempt(0, start=0, end=1, outcome="failed"),
        step(0, 0, 1),
        attempt(1, start=1, end=4, outcome="success"),
        span("x-probe", 1, 3, attempt=1),
        steps([1], t0=3, attempt=1),
    )
    assert groups(ledger) == {"effective": 2, "recover": 2}
