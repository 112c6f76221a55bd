"""The event simulator and the one that ticks every second agree on random small clusters."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchett.schedule import OURS, POLICIES, Settings, Workload
from torchett.schedule.simulation.simulator import Simulation

sys.path.insert(0, str(Path(__file__).parent))
from slow_simulator import simulate_slowly
from small_clusters import world

# What is small in a small world: waits and reserves that matter within minutes.
OURS_IN_SMALL = replace(
    OURS,
    wait_share=0.2,
    patience_spend=0.5,
    save_spend=1.0,
    patience_s=40.0,
    save_waits_s=(0.0, 10.0, 40.0, 80.0),
    reserve_share=0.3,
    most_preemptions=2,
)


@st.composite
def worlds(draw: st.DrawFn) -> Workload:
    quotas = draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))
    submits = sorted(draw(st.lists(st.integers(0, 400), min_size=1, max_size=14)))
    jobs = [
        (
            float(submit),
            draw(st.integers(0, len(quotas) - 1)),
            draw(st.integers(1, sum(quotas))),
            float(draw(st.integers(1, 400))),
        )
        for submit in submits
    ]
    return world(
        jobs,
        quotas,
        checkpoint_s=float(draw(st.sampled_from([20, 50, 100]))),
        save_s=float(draw(st.integers(0, 20))),
        restart_s=float(draw(st.integers(0, 30))),
        on_signal=draw(st.lists(st.booleans(), min_size=len(jobs), max_size=len(jobs))),
        seed=draw(st.integers(0, 3)),
    )


LENDING = [policy for policy in POLICIES.values() if policy.lends and policy.name != "ours"]


@pytest.mark.parametrize("policy", [*LENDING, OURS_IN_SMALL], ids=lambda policy: policy.name)
@settings(max_examples=30, deadline=None)
@given(
    work=worlds(),
    exit_s=st.integers(1, 5),
    grace_s=st.sampled_from([0, 5, 15]),
    hold_s=st.sampled_from([0, 0, 7, 60]),
)
def test_both_simulators_agree(policy, work, exit_s, grace_s, hold_s) -> None:
    how = Settings(grace_s=float(grace_s), exit_s=float(exit_s), hold_s=float(hold_s))
    slow = simulate_slowly(work, policy, how)
    fast = Simulation(work, policy, how)
    outcome = fast.run()
    assert fast.ended == slow["ended"]
    assert fast.preempts == slow["preempts"]
    assert fast.waited == slow["waited"]
    assert {name: round(value) for name, value in fast.sums.items() if value} == {
        name: slow[name] for name in ("work", "lost", "restarting", "leaving") if slow[name]
    }
    # The slow one counts a second more than the last event: its last look at the cluster.
    assert round(fast.quota_wait) == slow["quota_wait"]
    assert outcome.preemptions == sum(slow["preempts"])
