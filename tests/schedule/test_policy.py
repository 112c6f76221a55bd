"""What policies decide, one state at a time."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from torchett.model.errors import InputError
from torchett.schedule import OURS, POLICIES, Candidates, Decision, Demand, State
from torchett.schedule.policy import policy_named
from torchett.schedule.values import Pressure

NOW = 10_000.0


def state(*jobs: dict[str, Any], **more: Any) -> State:
    """Borrowed jobs; what a job does not say is the same for all."""
    common = {
        "gpus": 1,
        "started_s": 0.0,
        "durable_s": NOW - 600,
        "due_s": math.inf,
        "save_s": 10.0,
        "saves_on_signal": False,
        "restart_s": 200.0,
        "preemptions": 0,
    }
    rows = [common | job for job in jobs]
    columns = {name: np.array([row[name] for row in rows]) for name in common}
    candidates = Candidates(job=np.arange(len(rows)), **columns)
    return State(now_s=NOW, candidates=candidates, **{"grace_s": 30.0, **more})


def demand(gpus: int = 1, *, since_s: float = NOW) -> Demand:
    return Demand(gpus=gpus, waiting_gpus=gpus, since_s=since_s)


def stopped(decision: Decision) -> list[int]:
    return [eviction.job for eviction in decision.evictions]


def test_youngest_first_stops_what_started_last_however_much_it_loses() -> None:
    now = state({"started_s": 10.0, "durable_s": NOW}, {"started_s": 20.0, "durable_s": 20.0})
    assert stopped(POLICIES["youngest-first"].decide(now, demand())) == [1]


def test_largest_stops_the_largest() -> None:
    now = state({"gpus": 2}, {"gpus": 8}, {"gpus": 4})
    assert stopped(POLICIES["largest"].decide(now, demand(3))) == [1]


def test_least_lost_stops_what_saved_last_and_thrashes() -> None:
    """The job that has just restarted is the cheapest, however often it was preempted."""
    now = state({"durable_s": NOW - 100}, {"durable_s": NOW, "preemptions": 50})
    assert stopped(POLICIES["least-lost"].decide(now, demand())) == [1]
    assert stopped(OURS.decide(now, demand())) == [0]


def test_random_gives_the_same_answer_for_the_same_seed_only() -> None:
    jobs = [{} for _ in range(50)]
    first, again = (POLICIES["random"].decide(state(*jobs, seed=1), demand(9)) for _ in range(2))
    other = POLICIES["random"].decide(state(*jobs, seed=2), demand(9))
    assert stopped(first) == stopped(again) != stopped(other)


def test_ours_stops_the_set_that_loses_least() -> None:
    """Two jobs of 4 GPUs lose 2 × 4 × (60 + 200) s; the one of 8 loses 8 × (10 + 200) s."""
    now = state(
        {"gpus": 4, "durable_s": NOW - 60},
        {"gpus": 4, "durable_s": NOW - 60},
        {"gpus": 8, "durable_s": NOW - 10},
    )
    assert stopped(OURS.decide(now, demand(8))) == [2]


def test_a_job_that_was_preempted_often_comes_last_however_cheap() -> None:
    tired = {"durable_s": NOW, "restart_s": 0.0, "preemptions": OURS.most_preemptions}
    assert stopped(OURS.decide(state(tired, {"durable_s": 0.0}), demand())) == [1]
    assert stopped(OURS.decide(state(tired), demand())) == [0]


RICH = {"used_gpu_s": 1e9}  # a long history without waits: a large budget


def test_ours_waits_first_within_its_budget() -> None:
    """now ├── GPUs may come free ──┤ ask again"""
    decision = OURS.decide(state({}, **RICH), demand())
    assert decision == Decision(ask_again_s=NOW + OURS.patience_s)
    late = demand(since_s=NOW - OURS.patience_s)
    assert stopped(OURS.decide(state({}, **RICH), late)) == [0]


def test_without_a_budget_ours_does_not_wait() -> None:
    assert stopped(OURS.decide(state({}), demand())) == [0]
    spent = state({}, used_gpu_s=1e9, quota_wait_gpu_s=1e9)
    assert stopped(OURS.decide(spent, demand())) == [0]


def test_a_large_demand_waits_less_than_a_small_one() -> None:
    """One second of a gang of 100 is 100 GPU-seconds."""
    jobs = [{"gpus": 100}]
    budget = {"used_gpu_s": 100_000 / OURS.wait_share}
    small = OURS.decide(state(*jobs, **budget), demand(50)).ask_again_s
    large = OURS.decide(state(*jobs, **budget), demand(100)).ask_again_s
    assert NOW < large < small < NOW + OURS.patience_s


WAITED = demand(since_s=NOW - 1e6)


def test_a_save_that_is_near_is_awaited() -> None:
    """
         600 s ago         now    100 s
    ─────durable──────────────┼──────┤ durable again: 10 s lost instead of 600
    """
    near = OURS.decide(state({"due_s": NOW + 100}, **RICH), WAITED)
    assert [(each.job, each.at_s) for each in near.evictions] == [(0, NOW + 100)]
    far = OURS.decide(state({"due_s": NOW + 1000}, **RICH), WAITED)
    assert [(each.job, each.at_s) for each in far.evictions] == [(0, NOW)]


def test_a_save_is_not_awaited_where_little_would_be_lost() -> None:
    fresh = state({"durable_s": NOW - 5, "due_s": NOW + 100}, **RICH)
    assert [each.at_s for each in OURS.decide(fresh, WAITED).evictions] == [NOW]


def test_a_job_that_saves_on_the_signal_in_time_is_cheap() -> None:
    slow = {"saves_on_signal": True, "save_s": 60.0, "durable_s": NOW - 500}
    quick = {"saves_on_signal": True, "save_s": 20.0, "durable_s": NOW - 1500}
    deaf = {"durable_s": NOW - 100}
    assert stopped(OURS.decide(state(slow, quick, deaf), WAITED)) == [1]
    assert stopped(OURS.decide(state(slow, quick, deaf, grace_s=10.0), WAITED)) == [2]


def test_the_reserve_follows_the_claims_and_is_smaller_for_small_jobs() -> None:
    policy = replace(OURS, reserve_spreads=2.0, reserve_share=0.1, reserve_whole_from=4)

    def kept(spread: float, gpus: int) -> int:
        return policy.reserve(Pressure(gpus=100, claims_gpus=1.0, spread_gpus=spread), gpus)

    assert [kept(0.0, 8), kept(2.0, 8), kept(4.0, 8), kept(50.0, 8)] == [0, 4, 8, 10]
    assert [kept(4.0, 1), kept(4.0, 2), kept(4.0, 4)] == [2, 4, 8]


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(InputError, match=r"expected one of static, .*, ours, found 'best'"):
        policy_named("best")
