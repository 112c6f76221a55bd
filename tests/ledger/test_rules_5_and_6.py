"""Rules 5 and 6: ETT%, and failures by the domain that answers for them."""

import pytest
from drawing import attempt, history, settled, span, step, steps

from torchett.ledger import settle
from torchett.ledger.views import DEFINITIONS
from torchett.model import CAUSES, Domain, Outcome


def test_ett_is_effective_time_over_rank_seconds_unrounded() -> None:
    """
    rank 0   0─ step 0 ─2 ┄ 3
    rank 1   0 ┄┄┄┄┄┄┄┄┄┄┄┄ 3 end         2 of 6 rank seconds
    """
    ledger = settled(attempt(0, start=0, end=3, outcome="success", ranks=2), step(0, 0, 2), ranks=2)
    assert ledger.ett_percent == 100 * 2 / 6


def test_ett_of_no_rank_seconds_is_0() -> None:
    """
    5 start, 5 end
    """
    ledger = settled(attempt(0, start=5, end=5, outcome="success"), step(0, 5, 5))
    assert (ledger.rank_ns, ledger.ett_percent) == (0, 0.0)


def test_unsaved_steps_and_stalls_do_not_count() -> None:
    """
    attempt 0   0 1 2 3 ✗
    attempt 1       2 3 end       of 6 s, 2 were lost and 1 was data_wait: 3 ÷ 6
    """
    ledger = settled(
        attempt(0, start=0, end=4, outcome="failed"),
        steps(range(4), t0=0),
        span("data_wait", 0, 1),
        attempt(1, start=4, end=6, outcome="success"),
        steps([2, 3], t0=4, attempt=1),
    )
    assert ledger.ett_percent == 50


@pytest.mark.parametrize(
    ("outcome", "cause", "domain", "expected"),
    [
        ("failed", "nccl_timeout", "user", "user"),  # as given
        ("failed", "nccl_timeout", None, "infra"),  # by the cause's entry in the table
        ("failed", "cuda_oom", None, "user"),
        ("failed", "time_limit", None, "scheduler"),
        ("preempted", "gpu_ecc", None, "infra"),
        ("preempted", None, None, "scheduler"),  # else by how it ended
        ("preempted", "not_in_the_table", None, "scheduler"),
        ("failed", "not_in_the_table", None, "infra"),
        ("failed", None, None, "infra"),
    ],
)
def test_the_domain_is_as_given_else_by_cause_else_by_outcome(
    outcome: Outcome, cause: str | None, domain: Domain | None, expected: Domain
) -> None:
    """
    0 ─ ✗ 1       one failure, and one domain that answers for it
    """
    ledger = settled(attempt(0, start=0, end=1, outcome=outcome, cause=cause, domain=domain))
    assert ledger.failures == {"infra": 0, "scheduler": 0, "user": 0} | {expected: 1}
    assert ledger.attempts[0].domain == expected


def test_number_of_failures_counts_infra_and_scheduler_but_not_user() -> None:
    """
    attempt 0 ✗ node_failure   1 ✗ preempted   2 ✗ nan_loss   3 vanished   4 success
    """
    ledger = settled(
        attempt(0, start=0, end=1, outcome="failed", cause="node_failure"),
        attempt(1, start=1, end=2, outcome="preempted"),
        attempt(2, start=2, end=3, outcome="failed", cause="nan_loss"),
        attempt(3, start=3),
        attempt(4, start=5, end=6, outcome="success"),
    )
    assert ledger.failures == {"infra": 2, "scheduler": 1, "user": 1}
    assert ledger.number_of_failures == 3


def test_a_success_and_a_live_attempt_are_no_failures_whatever_cause_is_said() -> None:
    """
    attempt 0 end (success, with a cause)    attempt 1 ┄┄▶
    """
    ledger = settled(
        attempt(0, start=0, end=1, outcome="success", cause="cuda_oom", domain="user"),
        attempt(1, start=1),
    )
    assert ledger.number_of_failures == 0
    assert set(ledger.failures.values()) == {0}
    assert [one.domain for one in ledger.attempts] == [None, None]


def test_every_cause_in_the_table_has_one_domain() -> None:
    """The three lists of the failure table do not overlap."""
    assert len(CAUSES) == 17 + 4 + 10
    assert set(CAUSES.values()) == {"infra", "scheduler", "user"}


def test_the_report_object_says_the_same_in_seconds() -> None:
    """
    -3 submitted ┄ -1 allocated ─ 0 start ─ 1 ─ step 0 ─ 3 ✗ 4      an object with these keys
    """
    ledger = settled(
        attempt(0, submitted=-3, allocated=-1, start=0, end=4, outcome="failed"), step(0, 1, 3)
    )
    assert ledger.to_json() == {
        "job": "drawn",
        "ett_percent": 0.0,
        "window_s": 5.0,
        "queue_s": 2.0,
        "ranks": 1,
        "attempts": 1,
        "failures": {"infra": 1, "scheduler": 0, "user": 0},
        "time_to_start_s": 2.0,
        "time_to_recover_s": [],
        "at_risk_s": 0.0,
        "estimated_s": 0.0,
        "requeue_s": 0.0,
        "last_step": None,
        "rank_seconds": 5.0,
        "accounts": {"hardware_setup": 1.0, "unattributed": 1.0, "unsaved": 2.0, "detect": 1.0},
        "groups": {
            "effective": 0.0,
            "start": 1.0,
            "recover": 1.0,
            "in_loop": 0.0,
            "shutdown": 0.0,
            "unsaved": 2.0,
            "unattributed": 1.0,
        },
    }


def test_a_job_of_16384_ranks_and_54_days_sums_to_its_rank_seconds() -> None:
    """
    rank 0…16383   0─ imports ─1 ─────── a step of 53 days ─────── ✗ 54 days     7.6e19 rank-ns
    """
    day, ranks = 86_400, 16_384
    ledger = settled(
        attempt(0, start=0, end=54 * day, outcome="failed", ranks=ranks),
        *(span("imports", 0, day, rank=rank) for rank in range(ranks)),
        *(step(7, day, 54 * day, rank=rank) for rank in range(ranks)),
        attempt(1, start=54 * day, end=55 * day, outcome="success", ranks=ranks),
        step(7, 54 * day, 55 * day, attempt=1),
        ranks=ranks,
    )
    assert ledger.accounts["imports"] == ranks * day * 10**9
    assert ledger.accounts["unsaved"] == ranks * 53 * day * 10**9
    assert sum(ledger.accounts.values()) == sum(ledger.groups.values()) == ledger.rank_ns


def test_the_goodput_of_a_folded_block_is_that_of_its_steps() -> None:
    """
    attempt 0   ┌ steps 0–9 in 20 s, folded ┐ ✗
    attempt 1                                 6 7 8 9 of 2 s each

    The first lost step began at 12 s; from there on 6 s lie between starts: (12 + 6) ÷ 28.
    """
    rows = [
        attempt(0, start=0, end=20, outcome="failed"),
        attempt(1, start=20, end=28, outcome="success"),
        steps(range(6, 10), t0=20, each=2, attempt=1),
    ]
    definition = DEFINITIONS["goodput"]
    for first, estimated in (
        (step(0, 0, 20, count=10), True),
        (steps(range(10), t0=0, each=2), False),
    ):
        told = history(*rows, first)
        ledger = settle(told)
        assert definition.percent(ledger, told.rows) == pytest.approx(100 * 18 / 28)
        assert definition.estimated(ledger, told.rows) is estimated
        assert not DEFINITIONS["meta"].estimated(ledger, told.rows)
