"""Rule 1: the window, and which of it each attempt owns. Times in the drawings are seconds."""

from drawing import accounts, attempt, in_seconds, saved, settled, span, step, steps

from torchett.ledger import Ledger


def window(ledger: Ledger) -> tuple[float, float]:
    return in_seconds(ledger.window.start_ns), in_seconds(ledger.window.end_ns)


def test_the_window_runs_from_the_first_allocation_to_the_last_end() -> None:
    """
    allocated     start    step 0    end
    2─────────────5────────6────8────9
    hardware_setup unattrib effective teardown
    """
    ledger = settled(attempt(0, allocated=2, start=5, end=9, outcome="success"), step(0, 6, 8))
    assert window(ledger) == (2, 9)
    assert accounts(ledger) == {
        "hardware_setup": 3,
        "unattributed": 1,
        "effective": 2,
        "teardown": 1,
    }


def test_without_an_allocation_the_window_begins_at_the_start() -> None:
    """
    start    step 0    end
    5────────6────8────9
    """
    ledger = settled(attempt(0, start=5, end=9, outcome="success"), step(0, 6, 8))
    assert window(ledger) == (5, 9)
    assert "hardware_setup" not in accounts(ledger)


def test_a_live_jobs_window_ends_now() -> None:
    """
    start    step 0    now
    0────────1────3────7 ┄┄▶
    """
    ledger = settled(attempt(0, start=0), step(0, 1, 3), now=7)
    assert window(ledger) == (0, 7)


def test_a_live_jobs_now_is_the_latest_time_seen_if_that_is_later() -> None:
    """
    start    now  step 0 ends   a checkpoint is durable
    0────────2────3─────────────5 ┄┄▶
    """
    live = attempt(0, start=0)
    assert window(settled(live, step(0, 1, 3), saved(0, 5), now=2)) == (0, 5)
    assert window(settled(live, step(0, 1, 3), now=2)) == (0, 3)
    assert window(settled(live, step(0, 1, 3))) == (0, 3)


def test_queue_time_lies_beside_the_window() -> None:
    """
    submitted ┄┄ 30 ┄┄ allocated ── start ── end
    -32               -2            0        4
    """
    ledger = settled(
        attempt(0, submitted=-32, allocated=-2, start=0, end=4, outcome="success"), step(0, 0, 4)
    )
    assert in_seconds(ledger.window.queue_ns) == 30
    assert window(ledger) == (-2, 4)
    assert in_seconds(ledger.rank_ns) == 6


def test_the_queue_ends_at_the_start_where_no_allocation_is_said() -> None:
    """
    submitted ┄┄ 30 ┄┄ start ── end
    """
    ledger = settled(attempt(0, submitted=-30, start=0, end=4, outcome="success"), step(0, 0, 4))
    assert in_seconds(ledger.window.queue_ns) == 30
    assert in_seconds(settled(attempt(0, start=0, end=4, outcome="success")).window.queue_ns) == 0


def test_an_attempt_owns_the_time_since_the_previous_end() -> None:
    """
    attempt 0  0── step 0 ──4 end
    attempt 1               ┊ restart_gap ┊ 10 start ── step 1 ──13 end
    """
    ledger = settled(
        attempt(0, start=0, end=4, outcome="failed"),
        step(0, 0, 4),
        attempt(1, start=10, end=13, outcome="success"),
        step(1, 10, 13, attempt=1),
    )
    assert accounts(ledger) == {"effective": 7, "restart_gap": 6}
    assert accounts_of(ledger, 1) == {"effective": 3, "restart_gap": 6}
    assert ledger.window.requeue_ns == 0


def test_hardware_given_back_in_between_is_requeue_time() -> None:
    """
    attempt 0  0── step 0 ──4 end
                            ┊ requeue_s 5 ┊
    attempt 1                             9 allocated ── 11 start ── 12 ─ step 1 ─ 14 end

    Nobody's rank seconds, but wall time, and part of the recovery.
    """
    ledger = settled(
        attempt(0, start=0, end=4, outcome="preempted"),
        step(0, 0, 4),
        attempt(1, allocated=9, start=11, end=14, outcome="success"),
        step(1, 12, 14, attempt=1),
    )
    assert in_seconds(ledger.window.requeue_ns) == 5
    assert in_seconds(ledger.rank_ns) == 4 + (14 - 9)
    assert window(ledger) == (0, 14)
    assert [in_seconds(t) for t in ledger.time_to_recover_ns] == [12 - 4]
    assert accounts(ledger) == {"effective": 6, "restart_gap": 2, "unattributed": 1}


def test_rank_seconds_are_owned_time_times_the_ranks_of_each_attempt() -> None:
    """
    attempt 0, 4 ranks  0────────10 end
    attempt 1, 3 ranks           ┊─────── 15 end        4 × 10 + 3 × 5
    """
    ledger = settled(
        attempt(0, start=0, end=10, outcome="failed", ranks=4),
        [step(0, 0, 10, rank=rank) for rank in range(4)],
        attempt(1, start=10, end=15, outcome="success", ranks=3),
        [step(1, 10, 15, rank=rank, attempt=1) for rank in range(3)],
        ranks=4,
    )
    assert in_seconds(ledger.rank_ns) == 55
    assert accounts(ledger) == {"effective": 55}
    assert ledger.ranks == 4


def test_an_attempt_that_vanished_ended_with_the_last_that_was_seen_of_it() -> None:
    """
    attempt 0, rank 0   0── step 0 ──3
               rank 1   0── step 0 ─────5  (the last that was seen)
    attempt 1                            ┊ restart_gap ┊ 9 ── step 1 ── 11 end
    """
    ledger = settled(
        attempt(0, start=0, ranks=2),
        step(0, 0, 3),
        step(0, 0, 5, rank=1),
        attempt(1, start=9, end=11, outcome="success", ranks=2),
        [step(1, 9, 11, attempt=1, rank=rank) for rank in range(2)],
        ranks=2,
    )
    assert accounts(ledger) == {"effective": 8 + 4, "detect": 2, "restart_gap": 2 * 4}


def test_any_event_counts_as_the_last_that_was_seen() -> None:
    """
    attempt 0   0── step 0 ──3   a background upload ends at 6, a checkpoint is durable at 7
    attempt 1                                                 ┊ 9 start ── 10 end
    """
    later = attempt(1, start=9, end=10, outcome="success")
    upload = span("publish", 2, 6, background=True)
    by_span = settled(attempt(0, start=0), step(0, 0, 3), upload, later)
    assert accounts(by_span)["detect"] == 3
    by_checkpoint = settled(attempt(0, start=0), step(0, 0, 3), upload, saved(0, 7), later)
    assert accounts(by_checkpoint)["detect"] == 4


def test_an_attempt_that_vanished_ended_at_the_latest_when_the_next_had_the_hardware() -> None:
    """
    attempt 0   0────────── step 0 ──────────────9 (said later than can be)
    attempt 1        5 allocated ── 7 start ──── 8 end
    """
    unended = attempt(0, start=0)
    allocated = settled(
        unended, step(0, 0, 9), attempt(1, allocated=5, start=7, end=8, outcome="success")
    )
    assert in_seconds(allocated.window.tenures[0].hi_ns) == 5
    assert accounts(allocated) == {"effective": 5, "restart_gap": 2, "unattributed": 1}
    started = settled(unended, step(0, 0, 9), attempt(1, start=7, end=8, outcome="success"))
    assert in_seconds(started.window.tenures[0].hi_ns) == 7


def test_an_attempt_that_vanished_without_a_trace_ended_at_its_start() -> None:
    """
    attempt 0   2 start (no record)
    attempt 1   ┊ restart_gap ┊ 6 start ── 8 end
    """
    ledger = settled(attempt(0, start=2), attempt(1, start=6, end=8, outcome="success"))
    assert window(ledger) == (2, 8)
    assert accounts(ledger) == {"restart_gap": 4, "unattributed": 2}


def test_numbers_of_attempts_may_have_gaps() -> None:
    """
    attempt 3  0─ step 0 ─2 end    attempt 7  3 ─ step 1 ─ 5 end
    """
    ledger = settled(
        attempt(3, start=0, end=2, outcome="failed"),
        steps([0], t0=0, each=2, attempt=3),
        attempt(7, start=3, end=5, outcome="success"),
        steps([1], t0=3, each=2, attempt=7),
    )
    assert accounts(ledger) == {"effective": 4, "restart_gap": 1}


def test_a_job_without_attempts_has_an_empty_window() -> None:
    """Nothing was ever allocated: every number is 0, and nothing ever started."""
    ledger = settled(ranks=2)
    assert (ledger.window_ns, ledger.rank_ns, ledger.accounts) == (0, 0, {})
    assert (ledger.time_to_start_ns, ledger.last_step, ledger.ett_percent) == (None, None, 0.0)


def accounts_of(ledger: Ledger, position: int) -> dict[str, float]:
    return {name: in_seconds(ns) for name, ns in ledger.attempts[position].accounts.items()}
