"""The optimum and the waste: against other arithmetic, and against jobs that are played."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchett.levers.checkpoint.interval.interval import (
    Costs,
    Tier,
    efficiency,
    lambert_gap,
    optimum_s,
    simple_s,
    simple_waste,
    tier_intervals,
    waste,
)

HOUR = 3600.0
BLOG = Costs(blocking_s=15, mtbf_s=8 * HOUR)

durations = st.floats(1e-3, 1e4)
shares = st.floats(-12, 2).map(lambda e: 10**e)  # B/M


def test_the_published_example() -> None:
    assert optimum_s(15, 8 * HOUR) == pytest.approx(919.5, abs=0.05)
    assert simple_s(15, 8 * HOUR) == pytest.approx(929.5, abs=0.05)
    assert 100 * waste(919.5, BLOG).total == pytest.approx(3.2, abs=0.05)
    assert optimum_s(0.2, 8 * HOUR) == pytest.approx(107, abs=0.5)
    assert 100 * waste(107, Costs(blocking_s=0.2, mtbf_s=8 * HOUR)).total == pytest.approx(
        0.37, abs=0.005
    )


@given(shares)
def test_lambert_has_its_digits_from_tiny_to_large(b: float) -> None:
    mp = pytest.importorskip("mpmath")
    with mp.workdps(50):
        exact = 1 + mp.lambertw(-mp.exp(-1 - mp.mpf(b))).real
        assert abs(lambert_gap(b) / exact - 1) < 1e-13


def test_lambert_at_its_ends() -> None:
    assert lambert_gap(0) == 0
    assert lambert_gap(1e6) == 1
    near = 1e-3 * (1 - 1e-12), 1e-3  # where the series hands over to Newton
    assert lambert_gap(near[0]) == pytest.approx(lambert_gap(near[1]), rel=1e-12)


@given(shares, durations)
def test_the_optimum_is_a_minimum(share: float, mtbf_s: float) -> None:
    costs = Costs(blocking_s=share * mtbf_s, mtbf_s=mtbf_s)
    best = optimum_s(costs.blocking_s, mtbf_s)
    for factor in (0.5, 0.99, 1.01, 2.0):
        if share > 1:  # nearly all is waste: compare what is left
            assert efficiency(best * factor, costs) < efficiency(best, costs)
        else:
            assert waste(best * factor, costs).total > waste(best, costs).total


@given(shares, durations)
def test_at_the_optimum_waste_is_the_interval_in_units_of_the_mtbf(
    share: float, mtbf_s: float
) -> None:
    costs = Costs(blocking_s=share * mtbf_s, mtbf_s=mtbf_s)
    best = optimum_s(costs.blocking_s, mtbf_s)
    assert waste(best, costs).total == pytest.approx(best / mtbf_s, rel=1e-9)


@given(durations, durations, durations, st.floats(10, 1e6), st.floats(1e-3, 1e5))
def test_the_parts_are_all_of_it(
    blocking_s: float, upload_s: float, recover_s: float, mtbf_s: float, interval_s: float
) -> None:
    costs = Costs(blocking_s=blocking_s, upload_s=upload_s, recover_s=recover_s, mtbf_s=mtbf_s)
    parts = waste(interval_s, costs)
    assert min(parts.checkpointing, parts.lost, parts.recovering) >= 0
    assert parts.total + efficiency(interval_s, costs) == pytest.approx(1, rel=1e-12)


@given(durations, durations)
def test_upload_and_recovery_do_not_move_the_optimum(upload_s: float, recover_s: float) -> None:
    costs = Costs(blocking_s=15, mtbf_s=8 * HOUR, upload_s=upload_s, recover_s=recover_s)
    best = optimum_s(15, 8 * HOUR)
    assert waste(0.98 * best, costs).total > waste(best, costs).total
    assert waste(1.02 * best, costs).total > waste(best, costs).total


@given(shares.filter(lambda b: b < 1e-2))
def test_rare_failures_lead_to_the_simple_formula(share: float) -> None:
    mtbf_s = 1e6
    blocking_s = share * mtbf_s
    expected = simple_s(blocking_s, mtbf_s) - 2 * blocking_s / 3
    assert optimum_s(blocking_s, mtbf_s) == pytest.approx(expected, rel=share)
    best = expected
    simple = sum(simple_waste(best, Costs(blocking_s=blocking_s, mtbf_s=mtbf_s)))
    exact = waste(best, Costs(blocking_s=blocking_s, mtbf_s=mtbf_s)).total
    assert exact == pytest.approx(simple, rel=3 * math.sqrt(share))


def test_with_nothing_to_block_or_nothing_to_gain() -> None:
    assert optimum_s(0, HOUR) == 0
    assert efficiency(0, Costs(blocking_s=0, mtbf_s=HOUR)) == 0
    assert efficiency(1e9, BLOG) == 0
    assert waste(1e9, BLOG).lost == 1


def test_off_by_two_costs_a_quarter_more() -> None:
    best = waste(optimum_s(15, 8 * HOUR), BLOG).total
    assert waste(2 * optimum_s(15, 8 * HOUR), BLOG).total / best == pytest.approx(1.25, abs=0.02)


@pytest.mark.parametrize(
    "costs",
    [
        BLOG,
        Costs(blocking_s=60, mtbf_s=2 * HOUR, upload_s=200, recover_s=600),
        Costs(blocking_s=1, mtbf_s=0.5 * HOUR, upload_s=30, recover_s=120),
    ],
)
def test_a_job_that_is_played_wastes_as_much(costs: Costs) -> None:
    interval_s = optimum_s(costs.blocking_s, costs.mtbf_s)
    played = play(interval_s, costs, failures=20_000)
    expected = waste(interval_s, costs)
    said = (expected.checkpointing, expected.lost, expected.recovering)
    assert played == pytest.approx(said, rel=0.03, abs=2e-4)


def play(interval_s: float, costs: Costs, failures: int) -> tuple[float, float, float]:
    """Shares of checkpointing, lost work and recovery in a job that meets so many failures."""
    rng = random.Random(7)
    useful = saving = recovering = total = 0.0
    for _ in range(failures):
        life = rng.expovariate(1 / costs.mtbf_s)
        total += life
        # A failure during a recovery begins it anew.
        recovery = min(life, costs.recover_s)
        recovering += recovery
        life -= recovery
        cycle_s = interval_s + costs.blocking_s
        saved = max(0, math.floor((life - costs.upload_s) / cycle_s))
        useful += saved * interval_s
        saving += saved * costs.blocking_s
    lost = total - useful - saving - recovering
    return saving / total, lost / total, recovering / total


def test_two_tiers_each_have_their_own_optimum() -> None:
    local = Tier(blocking_s=0.1, failures_per_s=1 / (6 * HOUR))
    remote = Tier(blocking_s=10, failures_per_s=1 / (48 * HOUR))
    fast, safe = tier_intervals([local, remote])
    assert fast == pytest.approx(math.sqrt(2 * 0.1 * 6 * HOUR), rel=0.01)
    assert safe == pytest.approx(math.sqrt(2 * 10 * 48 * HOUR), rel=0.01)


def test_a_safer_tier_is_not_saved_more_often() -> None:
    local = Tier(blocking_s=10, failures_per_s=1 / (48 * HOUR))
    remote = Tier(blocking_s=0.1, failures_per_s=1 / HOUR)
    fast, safe = tier_intervals([local, remote])
    assert fast == safe
    assert tier_intervals([Tier(blocking_s=1, failures_per_s=0)]) == (math.inf,)
