"""Small schedules, drawn by hand. One column of a drawing is 10 s."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from torchett.schedule import (
    OURS,
    POLICIES,
    SLURM_HOLD_S,
    Decision,
    Demand,
    Eviction,
    Settings,
    State,
    simulate,
    synthetic,
    workload,
)
from torchett.schedule.simulation.draws import exponential
from torchett.schedule.simulation.simulator import Simulation
from torchett.schedule.simulation.workload import FailureRates, Habits
from torchett.schedule.values import Pressure

sys.path.insert(0, str(Path(__file__).parent))
from small_clusters import Job, world

YOUNGEST = POLICIES["youngest-first"]


def played(jobs: Sequence[Job], quotas: Sequence[int], policy=YOUNGEST, **more) -> Simulation:
    simulation = Simulation(world(jobs, quotas, **more), policy, Settings(exit_s=10.0))
    simulation.outcome = simulation.run()  # type: ignore[attr-defined]
    return simulation


def test_a_job_runs_at_once_where_its_quota_has_room() -> None:
    simulation = played([(0, 0, 2, 50)], [2])
    assert simulation.ended == [50]
    assert simulation.waited == [0]


def test_idle_quota_is_lent_and_taken_back() -> None:
    """
    vc0 a  ──────────x·                 4 GPUs: 2 are borrowed; stopped at 100, gone at 110
                      └ waits ──┐
    vc1 b            .──────────        claims its quota at 100, starts at 110, ends at 160
    vc0 a                       rr──────────────  restarts at 160, 20 s, trains 200 s from 0
    """
    simulation = played([(0, 0, 4, 200), (100, 1, 2, 50)], [2, 2])
    assert simulation.ended == [380, 160]
    assert simulation.preempts == [1, 0]
    assert simulation.waited == [50, 10]
    assert simulation.sums["lost"] == 400  # 100 s of 4 GPUs: no save was durable yet
    assert simulation.sums["restarting"] == 80
    assert simulation.sums["leaving"] == 40
    assert simulation.quota_wait == 20


def test_a_scheduler_that_holds_a_preempted_job_back_starts_it_later() -> None:
    """
    vc0 a  ──────────x·                 stopped at 100, gone at 110, held until 231
                      └ held, waits ┐
    vc1 b            .──────────    │   ends at 160: from then on 4 GPUs idle
    vc0 a                           rr──────────────  231: restarts, 20 s, trains 200 s
    """
    jobs: list[Job] = [(0, 0, 4, 200), (100, 1, 2, 50)]
    settings = Settings(exit_s=10.0, hold_s=SLURM_HOLD_S)
    simulation = Simulation(world(jobs, [2, 2]), YOUNGEST, settings)
    simulation.run()
    assert simulation.ended == [451, 160]
    assert simulation.waited == [121, 10]  # a hold is a wait


def test_what_a_durable_save_holds_is_not_lost() -> None:
    """A save begun at 100 is durable at 110: a kill at 130 loses 30 s."""
    simulation = played([(0, 0, 4, 200), (130, 1, 2, 50)], [2, 2])
    assert simulation.sums["lost"] == 30 * 4
    assert simulation.ended[0] == 190 + 20 + 100


def test_a_save_that_is_not_durable_yet_holds_nothing() -> None:
    simulation = played([(0, 0, 4, 200), (109, 1, 2, 50)], [2, 2])
    assert simulation.sums["lost"] == 109 * 4


def test_a_save_on_the_signal_keeps_all_and_takes_its_time() -> None:
    """Signal at 90, saved at 100, gone at 110."""
    simulation = played([(0, 0, 4, 200), (90, 1, 2, 50)], [2, 2], on_signal=[True, False])
    assert simulation.sums["lost"] == 0
    assert simulation.waited[1] == 20
    assert simulation.ended[0] == 160 + 20 + 110


def test_a_save_on_the_signal_that_outlasts_the_grace_is_lost() -> None:
    simulation = played(
        [(0, 0, 4, 200), (90, 1, 2, 50)], [2, 2], on_signal=[True, False], save_s=40.0
    )
    assert simulation.sums["lost"] == 90 * 4
    assert simulation.waited[1] == 30 + 10


def test_static_never_lends() -> None:
    simulation = played([(0, 0, 2, 50), (0, 0, 2, 50)], [2, 2], POLICIES["static"])
    assert simulation.ended == [50, 100]


def test_static_says_which_jobs_can_never_run() -> None:
    simulation = played([(0, 0, 3, 50), (0, 1, 1, 50)], [2, 2], POLICIES["static"])
    assert simulation.outcome.unfinished == 1  # type: ignore[attr-defined]


def test_fifo_lends_and_never_preempts() -> None:
    simulation = played([(0, 0, 4, 200), (100, 1, 2, 50)], [2, 2], POLICIES["fifo"])
    assert simulation.ended == [200, 250]
    assert simulation.preempts == [0, 0]
    assert simulation.quota_wait == 200


def test_only_borrowed_gpus_are_reclaimed() -> None:
    """a is within quota and younger than b, which borrows: b goes."""
    jobs = [(0, 0, 2, 500), (10, 0, 2, 500), (20, 1, 1, 500), (30, 1, 1, 500)]
    simulation = played(jobs, [2, 2])
    assert simulation.preempts == [0, 1, 0, 0]


def test_a_borrowed_job_becomes_one_within_quota_when_there_is_room() -> None:
    """
    vc0 a  ─────            within quota until 50
    vc0 b  ────────────     borrows until 50, then within quota: safe from c
    vc1 c            ───    finds GPUs free
    """
    simulation = played([(0, 0, 2, 50), (0, 0, 2, 120), (100, 1, 2, 30)], [2, 2])
    assert simulation.preempts == [0, 0, 0]
    assert simulation.waited == [0, 0, 0]


def test_freed_gpus_reach_the_claim_they_were_freed_for() -> None:
    """At 100 vc1 claims 2; the 1-GPU job of vc0, submitted at 105, must not get them at 110."""
    jobs = [(0, 0, 4, 200), (100, 1, 2, 50), (105, 0, 1, 50)]
    simulation = played(jobs, [2, 2])
    assert simulation.waited[1] == 10


def test_a_job_that_fits_passes_one_that_does_not() -> None:
    simulation = played([(0, 0, 1, 100), (10, 0, 2, 50), (20, 0, 1, 50)], [2])
    assert simulation.ended == [100, 150, 70]


@dataclass(frozen=True)
class StopAt:
    """Stops the first candidates that cover, at a time of its own."""

    at_s: float
    name = "stop at"
    lends = True
    preempts = True

    def reserve(self, pressure: Pressure, gpus: int) -> int:
        return 0

    def decide(self, state: State, demand: Demand) -> Decision:
        return Decision(
            evictions=tuple(
                Eviction(job=int(job), at_s=self.at_s) for job in state.candidates.job[:1]
            )
        )


def test_an_eviction_planned_for_a_save_loses_the_time_of_the_save_only() -> None:
    """Asked for at 60, the save is durable at 110: 10 s are lost, and vc1 waits 50 + 10 s."""
    simulation = played([(0, 0, 4, 200), (60, 1, 2, 50)], [2, 2], StopAt(110.0))
    assert simulation.sums["lost"] == 10 * 4
    assert simulation.waited[1] == 60


def test_a_planned_eviction_is_dropped_when_gpus_come_free_by_themselves() -> None:
    """c ends at 80, before the eviction at 110."""
    jobs = [(0, 0, 2, 500), (0, 0, 1, 500), (0, 0, 1, 80), (60, 1, 1, 50)]
    simulation = played(jobs, [2, 2], StopAt(110.0))
    assert simulation.preempts == [0, 0, 0, 0]
    assert simulation.waited[3] == 20


def test_a_failure_costs_what_was_not_saved_and_a_restart_on_the_same_gpus() -> None:
    rate = 1 / 150
    fails_s = exponential(6, 0, 1) / rate
    again_s = exponential(6, 0, 2) / rate
    assert 110 < fails_s < 200 < again_s + 100  # seed 6: one failure, after the first save
    simulation = played([(0, 0, 2, 200)], [2], failures_per_s=rate, seed=6)
    assert simulation.ended == [pytest.approx(fails_s + 20 + 100)]
    assert simulation.sums["failures"] == pytest.approx(2 * (fails_s - 100 + 20))
    assert simulation.preempts == [0]


# Whole schedules -------------------------------------------------------------------------------

RATES = FailureRates(up_to_gpus=(1, 8), per_s=(1e-5, 1e-4))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=lambda policy: policy.name)
def test_every_gpu_second_is_somewhere(policy) -> None:
    work = workload(synthetic(2500), load=0.9, seed=1, failures=RATES, habits=Habits(on_signal=0.5))
    outcome = simulate(work, policy)
    parts = ("work", "lost", "restarting", "leaving", "failures", "idle")
    total = sum(getattr(outcome, f"{part}_gpu_h") for part in parts)
    assert total == pytest.approx(outcome.capacity_gpu_h, rel=1e-9)
    if not outcome.unfinished:
        assert outcome.work_gpu_h * 3600 == pytest.approx(float(work.job_gpus @ work.run_s))


def test_a_job_within_quota_is_never_preempted_and_quotas_hold() -> None:
    work = workload(synthetic(2500), load=1.0, failures=RATES)

    class Watched(Simulation):
        def _signal(self, job: int) -> None:
            assert not self.within[job]
            super()._signal(job)

        def _schedule(self) -> None:
            super()._schedule()
            assert 0 <= self.free <= work.gpus
            assert all(room >= 0 for room in self.room)
            taken = np.zeros(len(work.vcs), dtype=int)
            for job, within in enumerate(self.within):
                if within and self.state[job] == 2:  # running
                    taken[self.vc[job]] += self.gpus[job]
            assert (taken <= work.quotas).all()

    assert Watched(work, OURS, Settings()).run().preemptions > 0


def test_the_same_seed_gives_the_same_outcome_and_another_one_does_not() -> None:
    trace = synthetic(2000)
    for policy in (OURS, POLICIES["random"]):
        first, again, other = (
            simulate(workload(trace, load=0.9, seed=seed, failures=RATES), policy)
            for seed in (1, 1, 2)
        )
        assert first == again != other


def test_failures_hit_a_job_at_the_same_moments_under_every_policy() -> None:
    assert exponential(1, 2, 3) == exponential(1, 2, 3)
    draws = [exponential(1, job, 1) for job in range(20_000)]
    assert np.mean(draws) == pytest.approx(1.0, abs=0.03)
    assert np.mean(np.array(draws) > 1) == pytest.approx(np.exp(-1), abs=0.02)


def test_ours_stops_fewer_jobs_and_loses_less_than_youngest_first() -> None:
    work = workload(synthetic(4000), load=0.9)
    ours, youngest = simulate(work, OURS), simulate(work, YOUNGEST)
    assert youngest.preemptions > 50
    assert ours.preemptions < 0.5 * youngest.preemptions
    assert ours.lost_gpu_h < 0.3 * youngest.lost_gpu_h
    assert ours.quota_wait_percent < 0.06
