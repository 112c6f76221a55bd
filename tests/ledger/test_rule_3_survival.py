"""Rule 3: which steps' progress survived."""

from drawing import accounts, attempt, groups, in_seconds, saved, settled, span, step, steps


def test_steps_from_the_resume_on_are_unsaved_in_the_attempt_before() -> None:
    """
    attempt 0   0 1 2 3 4 5 6 7 8 9 ✗
    attempt 1               6 7 8 9 10 11 end
                ╰── kept ──╯╰ lost ╯
    """
    ledger = settled(
        attempt(0, start=0, end=10, outcome="failed"),
        steps(range(10), t0=0),
        attempt(1, start=10, end=16, outcome="success"),
        steps(range(6, 12), t0=10, attempt=1),
    )
    assert accounts(ledger) == {"effective": 6 + 6, "unsaved": 4}
    assert ledger.last_step == 11


def test_steps_from_the_resume_on_are_unsaved_in_every_earlier_attempt() -> None:
    """
    attempt 0   0 1 2 3 ✗
    attempt 1           4 5 6 ✗
    attempt 2       2 3 4 5 6 7 end     loses 2 3 of attempt 0 and 4 5 6 of attempt 1
    """
    ledger = settled(
        attempt(0, start=0, end=4, outcome="failed"),
        steps(range(4), t0=0),
        attempt(1, start=4, end=7, outcome="failed"),
        steps(range(4, 7), t0=4, attempt=1),
        attempt(2, start=7, end=13, outcome="success"),
        steps(range(2, 8), t0=7, attempt=2),
    )
    assert accounts(ledger) == {"effective": 2 + 6, "unsaved": 2 + 3}


def test_the_state_of_a_peer_makes_nothing_void() -> None:
    """
    attempt 0   0 1 2 3 ✗
    attempt 1         3 4 5 end     a peer had gone on to 3 with what attempt 0 computed
    """
    ledger = settled(
        attempt(0, start=0, end=4, outcome="failed"),
        steps(range(4), t0=0),
        attempt(1, start=4, end=7, outcome="success", resumed_from="peer"),
        steps(range(3, 6), t0=4, attempt=1),
    )
    assert accounts(ledger) == {"effective": 4 + 3}
    assert ledger.losses == ()


def test_a_step_that_the_groups_refused_is_unsaved() -> None:
    """
    0 1 [refused] 2     waits for a quorum within it
    """
    ledger = settled(
        attempt(0, start=0, end=6, outcome="success"),
        steps(range(2), t0=0),
        span("refused", 2, 5),
        span("regroup", 3, 4),
        steps([2], t0=5),
    )
    assert accounts(ledger) == {"effective": 3, "refused": 2, "regroup": 1}
    assert groups(ledger) == {"effective": 3, "unsaved": 2, "recover": 1}


def test_every_loss_names_the_resume_that_lost_it() -> None:
    """
    attempt 0   0 1 2 3 4 5 ✗
    attempt 1           4 5 6 ✗         loses 4 5
    attempt 2       2 3 4 ✗             loses 2 3 of attempt 0 and 4 5 6 of attempt 1
                                        and at the end, with a checkpoint of 3, step 4 is lost
    """
    ledger = settled(
        attempt(0, start=0, end=6, outcome="failed"),
        steps(range(6), t0=0),
        attempt(1, start=6, end=9, outcome="failed"),
        steps(range(4, 7), t0=6, attempt=1),
        attempt(2, start=9, end=12, outcome="failed"),
        steps(range(2, 5), t0=9, attempt=2),
        saved(3, 11, attempt=2),
    )
    found = {
        (loss.attempt, loss.resumed, loss.first_step, loss.last_step, in_seconds(loss.net_ns))
        for loss in ledger.losses
    }
    assert found == {(0, 1, 4, 5, 2), (0, 2, 2, 3, 2), (1, 2, 4, 6, 3), (2, None, 4, 4, 1)}
    assert accounts(ledger) == {"effective": 2 + 2, "unsaved": 4 + 3 + 1}


def test_an_attempt_resumes_at_the_first_step_of_any_rank() -> None:
    """
    attempt 0          0 1 2 3 4 5 ✗
    attempt 1, rank 0      ┄┄┄ 4 5 end
               rank 1        3 4 5 end     began first, so r = 3
    """
    ledger = settled(
        attempt(0, start=0, end=6, outcome="failed", ranks=1),
        steps(range(6), t0=0),
        attempt(1, start=6, end=10, outcome="success", ranks=2),
        steps([4, 5], t0=8, attempt=1),
        steps([3, 4, 5], t0=7, attempt=1, rank=1),
        ranks=2,
    )
    assert accounts(ledger)["unsaved"] == 3


def test_of_ranks_that_begin_together_the_lower_index_is_the_resume() -> None:
    """
    attempt 0          0 1 2 3 4 5 ✗
    attempt 1, rank 0  5   at 6
               rank 1  2   at 6, so r = 2
    """
    ledger = settled(
        attempt(0, start=0, end=6, outcome="failed"),
        steps(range(6), t0=0),
        attempt(1, start=6, end=7, outcome="success", ranks=2),
        step(5, 6, 7, attempt=1),
        step(2, 6, 7, attempt=1, rank=1),
        ranks=2,
    )
    assert accounts(ledger)["unsaved"] == 4


def test_the_resume_is_the_first_step_not_the_lowest() -> None:
    """
    attempt 0   0 1 2 3 4 5 ✗
    attempt 1   4 5 then 1 again        r = 4: an index that comes back is not a resume
    """
    ledger = settled(
        attempt(0, start=0, end=6, outcome="failed"),
        steps(range(6), t0=0),
        attempt(1, start=6, end=9, outcome="success"),
        steps([4, 5, 1], t0=6, attempt=1),
    )
    assert accounts(ledger) == {"effective": 4 + 3, "unsaved": 2}


def test_a_resume_beyond_what_was_executed_loses_nothing() -> None:
    """
    attempt 0   0 1 2 ✗
    attempt 1         3 4 end
    """
    ledger = settled(
        attempt(0, start=0, end=3, outcome="failed"),
        steps(range(3), t0=0),
        attempt(1, start=3, end=5, outcome="success"),
        steps([3, 4], t0=3, attempt=1),
    )
    assert accounts(ledger) == {"effective": 5}


def test_a_last_attempt_without_success_loses_what_no_checkpoint_holds() -> None:
    """
    attempt 0   0 1 2 3 4 ✗       checkpoint of 2
                ╰ kept╯╰lost
    """
    for outcome in ("failed", "preempted"):
        ledger = settled(
            attempt(0, start=0, end=5, outcome=outcome),
            steps(range(5), t0=0),
            saved(1, 2),
            saved(2, 4),
        )
        assert accounts(ledger) == {"effective": 3, "unsaved": 2}
        assert (ledger.last_durable_step, ledger.last_step) == (2, 2)


def test_the_last_durable_checkpoint_is_the_highest_not_the_newest() -> None:
    """
    0 1 2 3 ✗      checkpoint of 3 is durable before that of 1
    """
    ledger = settled(
        attempt(0, start=0, end=4, outcome="failed"),
        steps(range(4), t0=0),
        saved(3, 4),
        saved(1, 5),
    )
    assert ledger.last_durable_step == 3
    assert accounts(ledger) == {"effective": 4}


def test_without_a_checkpoint_a_failed_job_kept_nothing() -> None:
    """
    0 1 2 ✗       last durable: −1
    """
    ledger = settled(attempt(0, start=0, end=3, outcome="failed"), steps(range(3), t0=0))
    assert accounts(ledger) == {"unsaved": 3}
    assert (ledger.last_durable_step, ledger.last_step) == (-1, None)


def test_steps_of_earlier_attempts_are_lost_with_the_last_one() -> None:
    """
    attempt 0   0 1 2 ✗            checkpoint of 0
    attempt 1         3 ✗          resumed at 3, but nothing durable holds 1, 2 or 3
    """
    ledger = settled(
        attempt(0, start=0, end=3, outcome="failed"),
        steps(range(3), t0=0),
        saved(0, 1),
        attempt(1, start=3, end=4, outcome="failed"),
        step(3, 3, 4, attempt=1),
    )
    assert accounts(ledger) == {"effective": 1, "unsaved": 3}


def test_a_resume_below_a_checkpoint_makes_it_void() -> None:
    """
    attempt 0   0 1 2 3 4 ✗       checkpoints of 1 and 4
    attempt 1       2 3 ✗         resumed at 2: the checkpoint of 4 was of no use
    """
    ledger = settled(
        attempt(0, start=0, end=5, outcome="failed"),
        steps(range(5), t0=0),
        saved(1, 2),
        saved(4, 5),
        attempt(1, start=5, end=7, outcome="failed"),
        steps([2, 3], t0=5, attempt=1),
    )
    assert ledger.last_durable_step == 1
    assert accounts(ledger) == {"effective": 2, "unsaved": 3 + 2}


def test_a_checkpoint_of_the_resumed_attempt_itself_is_not_void() -> None:
    """
    attempt 0   0 1 2 ✗
    attempt 1     1 2 ✗           its own checkpoint of 2 holds both
    """
    ledger = settled(
        attempt(0, start=0, end=3, outcome="failed"),
        steps(range(3), t0=0),
        attempt(1, start=3, end=5, outcome="failed"),
        steps([1, 2], t0=3, attempt=1),
        saved(2, 5, attempt=1),
    )
    assert ledger.last_durable_step == 2
    assert accounts(ledger) == {"effective": 1 + 2, "unsaved": 2}


def test_steps_of_a_live_job_stay_effective_and_are_at_risk() -> None:
    """
    0 1 2 3 ┄┄▶      checkpoint of 1; one of the two seconds of step 3 was data_wait
             ╰ 2 and 3 are at risk: 2 + 1 s on this one rank
    """
    ledger = settled(
        attempt(0, start=0),
        steps(range(4), t0=0, each=2),
        span("data_wait", 6, 7),
        saved(1, 5),
    )
    assert accounts(ledger) == {"effective": 7, "data_wait": 1}
    assert in_seconds(ledger.at_risk_ns) == 3
    assert ledger.last_step == 3


def test_at_risk_leaves_out_what_is_already_lost() -> None:
    """
    attempt 0   0 1 2 3 ✗         checkpoint of 0
    attempt 1       2 3 ┄┄▶       at risk: 1 of attempt 0, 2 and 3 of attempt 1
    """
    ledger = settled(
        attempt(0, start=0, end=4, outcome="failed"),
        steps(range(4), t0=0),
        saved(0, 1),
        attempt(1, start=4),
        steps([2, 3], t0=4, attempt=1),
    )
    assert accounts(ledger) == {"effective": 2 + 2, "unsaved": 2}
    assert in_seconds(ledger.at_risk_ns) == 3


def test_a_job_that_is_over_has_nothing_at_risk() -> None:
    """
    0 1 end (success), no checkpoint: what a finished job made is kept
    """
    ledger = settled(attempt(0, start=0, end=2, outcome="success"), steps(range(2), t0=0))
    assert (accounts(ledger), ledger.at_risk_ns) == ({"effective": 2}, 0)


def test_an_index_repeated_within_an_attempt_counts_each_time() -> None:
    """
    0 1 1 1 2 end
    """
    ledger = settled(attempt(0, start=0, end=5, outcome="success"), steps([0, 1, 1, 1, 2], t0=0))
    assert accounts(ledger) == {"effective": 5}


def test_a_resume_inside_a_folded_block_splits_it_in_proportion() -> None:
    """
    attempt 0   ┌ steps 0–9 in 20 s, folded ┐ ✗
    attempt 1                 7 8 9 end            resumes at 7: three tenths of 20 s are lost,
                                                   and all 20 s are only so well known
    """
    ledger = settled(
        attempt(0, start=0, end=20, outcome="failed"),
        step(0, 0, 20, count=10),
        attempt(1, start=20, end=26, outcome="success"),
        steps([7, 8, 9], t0=20, each=2, attempt=1),
    )
    assert accounts(ledger) == {"effective": 14 + 6, "unsaved": 6}
    assert in_seconds(ledger.estimated_ns) == 20
    assert ledger.last_step == 9


def test_a_resume_between_blocks_estimates_nothing() -> None:
    """
    attempt 0   ┌ steps 0–6 ┐ ckpt ┌ steps 7–9 ┐ ✗      a block is closed at a checkpoint
    attempt 1                        7 8 9 end
    """
    ledger = settled(
        attempt(0, start=0, end=20, outcome="failed"),
        step(0, 0, 14, count=7),
        saved(6, 14),
        step(7, 14, 20, count=3),
        attempt(1, start=20, end=26, outcome="success"),
        steps([7, 8, 9], t0=20, each=2, attempt=1),
    )
    assert accounts(ledger) == {"effective": 14 + 6, "unsaved": 6}
    assert ledger.estimated_ns == 0


def test_only_what_a_block_keeps_is_split() -> None:
    """
    attempt 0   ┌ steps 0–9 in 0…20 ┐ ✗    of which recompile took 10: 10 s are split by 5 : 5
    attempt 1            5 end
    """
    ledger = settled(
        attempt(0, start=0, end=20, outcome="failed"),
        step(0, 0, 20, count=10),
        span("recompile", 0, 10),
        attempt(1, start=20, end=21, outcome="success"),
        step(5, 20, 21, attempt=1),
    )
    assert accounts(ledger) == {"recompile": 10, "effective": 5 + 1, "unsaved": 5}
    assert in_seconds(ledger.estimated_ns) == 10
