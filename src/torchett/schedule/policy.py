"""Preemption policies: pure functions from the state of a cluster to a decision.

static          no lending: a VC never has more GPUs than its quota
fifo            lends, never preempts: a VC waits until GPUs come free
youngest-first  stops the jobs that started last, at once: Kueue, and Slurm with
                `preempt_youngest_first`
largest         stops the largest jobs
random          stops any jobs
least-lost      stops the jobs with the fewest GPU-seconds since their last durable checkpoint
ours            `FreshnessPolicy`: least loss with ageing, bounded waits, a lending reserve
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from torchett.model.errors import InputError
from torchett.schedule.values import (
    Decision,
    Demand,
    Eviction,
    Floats,
    Ints,
    Pressure,
    State,
)
from torchett.schedule.victims import cheapest_cover, first_that_cover


class Policy(Protocol):
    """What the simulator and a daemon ask."""

    @property
    def name(self) -> str: ...
    @property
    def lends(self) -> bool: ...
    @property
    def preempts(self) -> bool: ...

    def reserve(self, pressure: Pressure, gpus: int) -> int:
        """How many GPUs to keep free when lending to a job of so many GPUs."""
        ...

    def decide(self, state: State, demand: Demand) -> Decision:
        """Which jobs to stop, and when; or when to ask again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPreemption:
    """Never stops a job. Without lending: `static`; with it: `fifo`."""

    name: str
    lends: bool
    preempts: bool = False

    def reserve(self, pressure: Pressure, gpus: int) -> int:
        return 0

    def decide(self, state: State, demand: Demand) -> Decision:
        return Decision()


Order = Callable[[State], Ints]


@dataclass(frozen=True, slots=True, kw_only=True)
class InOrder:
    """Stops jobs at once, in an order, until the demand is covered."""

    name: str
    order: Order
    lends: bool = True
    preempts: bool = True

    def reserve(self, pressure: Pressure, gpus: int) -> int:
        return 0

    def decide(self, state: State, demand: Demand) -> Decision:
        rows = first_that_cover(self.order(state), state.candidates.gpus, demand.gpus)
        return Decision(
            evictions=tuple(
                Eviction(job=int(job), at_s=state.now_s) for job in state.candidates.job[rows]
            )
        )


def _youngest(state: State) -> Ints:
    return np.lexsort((-state.candidates.job, -state.candidates.started_s))


def _largest(state: State) -> Ints:
    return np.lexsort((state.candidates.job, -state.candidates.gpus))


def _random(state: State) -> Ints:
    # The same state and seed give the same order, whatever was asked before.
    moment = int(state.now_s * 1000)
    return np.random.default_rng((state.seed, moment)).permutation(len(state.candidates))


def _least_lost(state: State) -> Ints:
    lost = state.candidates.lost_s(state.now_s) * state.candidates.gpus
    return np.lexsort((state.candidates.job, lost))


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessPolicy:
    """Loses little: waits within a budget, then stops the cheapest set of jobs.

    1. *Wait for GPUs to come free.* Most demands are small, and some job ends soon. The wait is
       paid from a budget: a share of all GPU-seconds used so far. One demand may spend a fraction
       of what is left, so many small demands can wait, and a large one waits for a short time.
    2. *Choose the set with the least cost*: GPU-seconds lost + restart × (1 + past preemptions).
       What a job loses is the least of three: kill it now; wait for its next regular save, if it
       is near; let it save on the signal, if it does that and the save fits the grace.
    3. *Keep a reserve when lending*, sized by what VCs are expected to claim. A job of one GPU
       needs half of it: such jobs end, or can be waited for, soonest.
    """

    name: str = "ours"
    lends: bool = True
    preempts: bool = True
    wait_share: float = 0.00052  # of all GPU-seconds used, the share that may be waited
    patience_spend: float = 0.1  # of the budget left, what one demand may wait for free GPUs
    save_spend: float = 0.5  # and for saves
    patience_s: float = 300.0  # longest wait for GPUs that come free by themselves
    save_waits_s: tuple[float, ...] = (0.0, 15.0, 30.0, 60.0, 120.0, 200.0, 300.0)
    wait_price: float = 0.3  # GPU-seconds lost that are worth one GPU-second of waiting
    most_preemptions: int = 5  # a job with so many is stopped only where no other set covers
    reserve_spreads: float = 2.5  # the reserve: so many standard deviations of the claims,
    reserve_share: float = 0.03  # at most this share of the cluster,
    reserve_whole_from: int = 2  # whole for jobs of so many GPUs, in proportion below

    def reserve(self, pressure: Pressure, gpus: int) -> int:
        expected = self.reserve_spreads * pressure.spread_gpus
        whole = min(expected, self.reserve_share * pressure.gpus)
        return math.floor(whole * min(1.0, gpus / self.reserve_whole_from))

    def decide(self, state: State, demand: Demand) -> Decision:
        budget_gpu_s = max(0.0, self.wait_share * state.used_gpu_s - state.quota_wait_gpu_s)
        left_s = budget_gpu_s / demand.waiting_gpus
        give_up_s = demand.since_s + min(self.patience_s, self.patience_spend * left_s)
        if give_up_s > state.now_s + 1:
            return Decision(ask_again_s=float(math.ceil(give_up_s)))
        return Decision(evictions=self._cheapest(state, demand, self.save_spend * left_s))

    def _cheapest(self, state: State, demand: Demand, most_s: float) -> tuple[Eviction, ...]:
        """The best set over several lengths of waiting: victims of one set wait side by side."""
        least, jobs = math.inf, state.candidates
        best: tuple[Eviction, ...] = ()
        for wait_s in self.save_waits_s:
            if wait_s > most_s:
                break
            costs, at_s = self._costs(state, wait_s)
            rows = cheapest_cover(costs, jobs.gpus, demand.gpus)
            waited_s = float((at_s[rows] - state.now_s).max(initial=0.0))
            cost = float(costs[rows].sum()) + self.wait_price * waited_s * demand.waiting_gpus
            if cost < least:
                least = cost
                best = tuple(
                    Eviction(job=int(jobs.job[row]), at_s=float(at_s[row])) for row in rows
                )
        return best

    def _costs(self, state: State, wait_s: float) -> tuple[Floats, Floats]:
        """GPU-seconds that stopping each job costs at its best time, and that time."""
        jobs, now_s = state.candidates, state.now_s
        lost_s = jobs.lost_s(now_s)
        saves = jobs.saves_on_signal & (jobs.save_s <= state.grace_s)
        lost_s = np.where(saves, np.minimum(lost_s, jobs.save_s), lost_s)
        waits = (jobs.due_s - now_s <= wait_s) & (jobs.save_s < lost_s)
        at_s = np.where(waits, jobs.due_s, now_s)
        cost_s = np.where(waits, jobs.save_s, lost_s) + jobs.restart_s * (1 + jobs.preemptions)
        costs = cost_s * jobs.gpus
        # Jobs that were preempted too often come last, however cheap.
        tired = jobs.preemptions >= self.most_preemptions
        return costs + np.where(tired, costs.sum() + 1.0, 0.0), at_s


OURS = FreshnessPolicy()
POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        NoPreemption(name="static", lends=False),
        NoPreemption(name="fifo", lends=True),
        InOrder(name="youngest-first", order=_youngest),
        InOrder(name="largest", order=_largest),
        InOrder(name="random", order=_random),
        InOrder(name="least-lost", order=_least_lost),
        OURS,
    )
}


def policy_named(name: str) -> Policy:
    if name not in POLICIES:
        raise InputError(f"--policy: expected one of {', '.join(POLICIES)}, found '{name}'")
    return POLICIES[name]
