"""The interval a job keeps while it runs, and what it believes of its failures."""

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchett.levers.checkpoint.interval.failure_rate import (
    HALF_LIFE_S,
    FailureRate,
    rate_of_fleet,
    scaled_by_nodes,
)
from torchett.levers.checkpoint.interval.interval import AutoInterval, Costs, optimum_s, waste

HOUR, DAY = 3600.0, 86400.0


def measured(
    blocking_s: float, *, upload_s: float = 0.0, prior_mtbf_s: float = 8 * HOUR, **more: Any
) -> AutoInterval:
    auto = AutoInterval(prior_mtbf_s=prior_mtbf_s, **more)
    for _ in range(3):
        auto.observe_blocking(blocking_s)
        auto.observe_upload(upload_s)
    return auto


# Failure rate -----------------------------------------------------------------------------------


def test_the_rate_begins_at_its_prior_and_ends_at_what_is_seen() -> None:
    rate = FailureRate(prior_mtbf_s=8 * HOUR)
    assert rate.mtbf_s == 8 * HOUR
    assert rate.after(8 * HOUR).mtbf_s == pytest.approx(16 * HOUR, rel=0.01)  # no failure yet
    for _ in range(2000):
        rate = rate.after(2 * HOUR, 1)
    assert rate.mtbf_s == pytest.approx(2 * HOUR, rel=0.03)


@given(st.lists(st.floats(0, 30 * DAY), min_size=1, max_size=8))
def test_many_short_looks_are_one_long_one(parts: list[float]) -> None:
    start = FailureRate(prior_mtbf_s=8 * HOUR, failures=5, exposure_s=DAY)
    pieces = start
    for part in parts:
        pieces = pieces.after(part)
    whole = start.after(sum(parts))
    assert pieces.exposure_s == pytest.approx(whole.exposure_s, rel=1e-9)
    assert pieces.failures == pytest.approx(whole.failures, rel=1e-9)


def test_what_is_long_past_is_forgotten() -> None:
    bad_month = FailureRate(prior_mtbf_s=8 * HOUR)
    for _ in range(30 * 24):
        bad_month = bad_month.after(HOUR, 1)
    better = bad_month
    for _ in range(60):
        better = better.after(DAY, 1)
    assert better.mtbf_s > 12 * HOUR  # of 780 failures in 90 days it would be under 3 h
    assert bad_month.after(HALF_LIFE_S).failures == pytest.approx(bad_month.failures / 2)


def test_the_prior_scales_with_nodes_and_a_fleet_outweighs_no_job() -> None:
    assert scaled_by_nodes(800 * HOUR, nodes=100) == 8 * HOUR
    assert scaled_by_nodes(8 * HOUR, nodes=16, seen_on=8) == 4 * HOUR
    fleet = rate_of_fleet(failures=1000, node_s=1000 * 640 * HOUR, nodes=64)
    assert fleet.mtbf_s == pytest.approx(10 * HOUR)
    assert fleet.prior_weight == 4
    young = rate_of_fleet(failures=0, node_s=50 * HOUR)
    assert (young.mtbf_s, young.prior_weight) == (50 * HOUR, 1)


# Interval ---------------------------------------------------------------------------------------


def test_the_first_save_comes_early_because_it_measures() -> None:
    auto = AutoInterval()
    assert auto.interval_s() == 60
    auto.observe_blocking(15)
    assert auto.interval_s() == pytest.approx(919.5, abs=0.1)


def test_a_first_save_that_pays_for_the_set_up_does_not_count_for_long() -> None:
    auto = AutoInterval()
    auto.observe_blocking(7.0)
    auto.observe_blocking(0.2)
    assert auto.interval_s() == pytest.approx(optimum_s(0.2, 8 * HOUR))


def test_the_interval_follows_what_blocks_on_average() -> None:
    auto = measured(15)
    for seconds in [10, 20] * 40:
        auto.observe_blocking(seconds)
    assert auto.blocking_s == 15


def test_an_interval_is_never_shorter_than_an_upload_takes() -> None:
    assert measured(0.002, upload_s=100).interval_s() == pytest.approx(110)
    slow = measured(0.002, upload_s=100, max_loss_s=50)
    assert slow.interval_s() == pytest.approx(110)  # a wish cannot make an upload faster


def test_saves_never_block_more_than_their_share() -> None:
    auto = measured(60, prior_mtbf_s=0.5 * HOUR)
    assert auto.interval_s() == pytest.approx(60 / 0.035 - 60)
    assert 60 / (auto.interval_s() + 60) == pytest.approx(0.035)


def test_what_saves_compute_elsewhere_takes_its_share_of_the_cores_at_most() -> None:
    auto = measured(0.002, prior_mtbf_s=60)
    assert auto.interval_s() == 1
    for seconds in (0.3, 0.1, 0.1):
        auto.observe_beside(seconds)
    assert auto.interval_s() == pytest.approx(0.1 / 0.02)
    following = AutoInterval(prior_mtbf_s=60, state=auto.to_json())
    assert following.interval_s() == pytest.approx(0.1 / 0.02)


def test_the_user_says_what_may_be_lost_at_most() -> None:
    assert measured(15, max_loss_s=300).interval_s() == 300
    assert measured(15, max_loss_s=300, upload_s=100).interval_s() == 200  # T + L may be lost
    assert AutoInterval(max_loss_s=30).interval_s() == 30


def test_small_changes_leave_the_interval_alone() -> None:
    auto = measured(15)
    before = auto.interval_s()
    auto.observe_exposure(3 * HOUR)  # the optimum moves by 17%
    assert auto.interval_s() == before
    auto.observe_exposure(2 * HOUR)
    assert auto.interval_s() > 1.2 * before


def test_a_failure_makes_it_think_again() -> None:
    auto = measured(15)
    before = auto.interval_s()
    auto.observe_failure(8.2 * HOUR, 1)
    assert auto.interval_s() == pytest.approx(optimum_s(15, auto.mtbf_s))
    assert auto.interval_s() != before


def test_a_preemption_with_notice_is_time_without_failure() -> None:
    preempted, failed = measured(15), measured(15)
    preempted.observe_failure(8 * HOUR, 0)
    failed.observe_failure(8 * HOUR, 1)
    assert preempted.mtbf_s == pytest.approx(16 * HOUR, rel=0.01)
    assert failed.mtbf_s == pytest.approx(8 * HOUR, rel=0.01)


def test_attempts_hand_on_what_they_know() -> None:
    auto = measured(15, upload_s=40)
    auto.observe_failure(3 * HOUR, 2)
    kept = json.loads(json.dumps(auto.to_json()))
    told = auto.interval_s()
    following = AutoInterval(state=kept)
    assert following.interval_s() == told
    following.observe_blocking(99)  # the first of a new process
    assert following.interval_s() == told
    assert following.mtbf_s == auto.mtbf_s


@pytest.mark.parametrize(
    "state",
    [
        {"rate": 1},
        {"rate": {"failures": -1, "exposure_s": 0}, "blocking_s": [], "upload_s": [], "held_s": 1},
        {
            "rate": {"failures": 1, "exposure_s": 0},
            "blocking_s": ["x"],
            "upload_s": [],
            "held_s": 1,
        },
        {"rate": {"failures": 1, "exposure_s": math.nan}, "blocking_s": [], "upload_s": []},
        {"rate": {"failures": 1, "exposure_s": 1}, "blocking_s": [-1], "upload_s": [], "held_s": 0},
    ],
)
def test_a_damaged_state_is_not_used(state: Any, caplog: pytest.LogCaptureFixture) -> None:
    auto = AutoInterval(state=state)
    assert auto.mtbf_s == 8 * HOUR
    assert auto.interval_s() == 60
    assert "begins anew" in caplog.text


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["observe_blocking", "observe_upload", "observe_exposure"]),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=30,
    ),
    st.none() | st.floats(1, 1e5),
)
def test_whatever_it_is_told_it_answers_with_a_duration(
    told: list[tuple[str, float]], max_loss_s: float | None
) -> None:
    auto = AutoInterval(max_loss_s=max_loss_s)
    for name, value in told:
        getattr(auto, name)(value)
        assert 1 <= auto.interval_s() < math.inf
    again = AutoInterval(max_loss_s=max_loss_s, state=json.loads(json.dumps(auto.to_json())))
    assert again.interval_s() >= 1


@pytest.mark.parametrize("wrong", [0.25, 4])
def test_a_wrong_prior_is_unlearned(wrong: float) -> None:
    """A small edition of benchmarks/interval.py."""
    mtbf_s, ratios = 8 * HOUR, []
    costs = Costs(blocking_s=15, mtbf_s=mtbf_s)
    least = waste(optimum_s(15, mtbf_s), costs).total
    for seed in range(100):
        rng, auto = random.Random(seed), measured(15, prior_mtbf_s=wrong * mtbf_s)
        left = 10 * DAY
        while left > 0:
            life = rng.expovariate(1 / mtbf_s)
            auto.observe_failure(min(life, left), int(life < left))
            left -= life
        ratios.append(waste(auto.interval_s(), costs).total / least)
    assert sum(ratios) / len(ratios) < 1.01
