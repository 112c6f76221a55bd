"""A job's replica groups, added up."""

from drawing import S, accounts, attempt, groups, settled, steps

from torchett.ledger.replica_groups import summed


def test_groups_are_added_up_and_each_keeps_its_own_attempts() -> None:
    """
    group 0   0 1 2 3 4 5 6 7 8 9
    group 1     0 1 ✗   4 5 6 7 8 9
    """
    first = settled(attempt(0, start=0, end=10, outcome="success"), steps(range(10), t0=0))
    second = settled(
        attempt(0, start=1, end=3, outcome="failed"),
        steps(range(2), t0=1),
        attempt(1, start=3.5, end=10, outcome="success", resumed_from="peer"),
        steps(range(4, 10), t0=4, attempt=1),
    )
    job = summed("gpt", [first, second])
    assert job.rank_ns == first.rank_ns + second.rank_ns == 19 * S
    assert accounts(job)["effective"] == 10 + 2 + 6
    assert sum(groups(job).values()) == 19
    assert job.window_ns == 10 * S
    assert (job.ranks, len(job.attempts), job.last_step) == (2, 3, 9)
    assert job.failures == {"infra": 1, "scheduler": 0, "user": 0}
    assert job.time_to_start_ns == 0
    assert not job.window.live


def test_a_job_is_live_while_one_group_is() -> None:
    over = settled(attempt(0, start=5, end=10, outcome="success"), steps(range(5), t0=5))
    live = settled(attempt(0, start=0), steps(range(9), t0=0), now=9)
    assert summed("gpt", [over, live]).window.live
    assert summed("gpt", [live, over]).window.live
