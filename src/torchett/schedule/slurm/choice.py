"""Which jobs to stop for one that waits: Slurm's queue as the values that policies read.

A job of 2 nodes × 4 GPUs needs whole places, not just 8 GPUs: nodes are filled one by one, each
time the one that is cheapest now, as a victim on several nodes frees GPUs on all of them.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchett.schedule.policy import Policy
from torchett.schedule.slurm.cluster import Node, QueuedJob
from torchett.schedule.values import Candidates, Demand, Eviction, State

# Why a job waits that is within its quota and could run if GPUs were free.
_LACKS_GPUS = ("Resources", "Priority", "None")


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """What is assumed of jobs that say nothing of themselves."""

    grace_s: float = 60.0  # from the signal until the guard requeues the job
    restart_s: float = 202.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Jobs to stop, and the nodes on which the waiting job can then start; or when to ask again."""

    evictions: tuple[Eviction, ...] = ()
    nodes: tuple[str, ...] = ()
    ask_again_s: float = math.inf


def claims(jobs: Mapping[int, QueuedJob], preempting: Collection[str]) -> list[QueuedJob]:
    """The jobs that wait for GPUs and may preempt, the first to serve first."""
    found = [
        job
        for job in jobs.values()
        if job.waits and job.qos in preempting and job.gpus and job.reason in _LACKS_GPUS
    ]
    return sorted(found, key=lambda job: (-job.priority, job.submit_s, job.number))


def victims(jobs: Mapping[int, QueuedJob], preempted: Collection[str]) -> list[QueuedJob]:
    """The jobs that may be stopped: those that Slurm will run again."""
    found = (job for job in jobs.values() if job.runs and job.qos in preempted and job.gpus)
    return sorted((job for job in found if job.requeues), key=lambda job: job.number)


def choose(
    policy: Policy,
    job: QueuedJob,
    running: Sequence[QueuedJob],
    nodes: Mapping[str, Node],
    state: State,
    *,
    since_s: float,
    habit: Habit,
) -> Choice:
    """The policy's victims for this job; nothing where even all of them are not enough."""
    here = {name: node for name, node in nodes.items() if job.partition in node.partitions}
    if job.per_node is None:
        return _anywhere(policy, job, running, here, state, since_s, habit)
    return _on_nodes(policy, job, running, here, state, since_s, habit)


def candidates(running: Sequence[QueuedJob], gpus: Sequence[int], habit: Habit) -> Candidates:
    """What the jobs' beacons say; a job without one has lost all since its start."""
    rows = [(job, job.beacon) for job in running]
    return Candidates(
        job=np.array([job.number for job in running], dtype=np.int64),
        gpus=np.array(gpus, dtype=np.int64),
        started_s=np.array([job.start_s for job in running]),
        durable_s=np.array(
            [max(job.start_s, b.durable_s) if b else job.start_s for job, b in rows]
        ),
        due_s=np.array([b.due_s if b and b.due_s is not None else math.inf for _, b in rows]),
        save_s=np.array([b.save_s if b else 0.0 for _, b in rows]),
        saves_on_signal=np.array([bool(b and b.saves_on_signal) for _, b in rows]),
        restart_s=np.array(
            [b.restart_s if b and b.restart_s else habit.restart_s for _, b in rows]
        ),
        preemptions=np.array([b.preemptions if b else job.restarts for job, b in rows]),
    )


def _anywhere(
    policy: Policy,
    job: QueuedJob,
    running: Sequence[QueuedJob],
    nodes: Mapping[str, Node],
    state: State,
    since_s: float,
    habit: Habit,
) -> Choice:
    inside = [one for one in running if set(one.node_names) & set(nodes)]
    lacking = job.gpus - sum(node.free for node in nodes.values())
    if lacking <= 0 or sum(one.gpus for one in inside) < lacking:
        return Choice()
    seen = replace(state, candidates=candidates(inside, [one.gpus for one in inside], habit))
    made = policy.decide(seen, Demand(gpus=lacking, waiting_gpus=job.gpus, since_s=since_s))
    stopped = {eviction.job for eviction in made.evictions}
    where = {name for one in inside if one.number in stopped for name in one.node_names}
    where |= {name for name, node in nodes.items() if node.free}
    return Choice(
        evictions=made.evictions,
        nodes=tuple(sorted(where)) if stopped else (),
        ask_again_s=made.ask_again_s,
    )


def _on_nodes(
    policy: Policy,
    job: QueuedJob,
    running: Sequence[QueuedJob],
    nodes: Mapping[str, Node],
    state: State,
    since_s: float,
    habit: Habit,
) -> Choice:
    assert job.per_node is not None
    taken: dict[int, Eviction] = {}
    chosen: list[str] = []
    by_node = {name: [one for one in running if name in one.node_names] for name in sorted(nodes)}
    for _ in range(job.nodes):
        best: tuple[float, str, tuple[Eviction, ...]] | None = None
        for name, there in by_node.items():
            if name in chosen or nodes[name].gpus < job.per_node:
                continue
            freed = sum(_share(one) for one in there if one.number in taken)
            lacking = job.per_node - nodes[name].free - freed
            left = [one for one in there if one.number not in taken]
            evictions: tuple[Eviction, ...] = ()
            if lacking > 0:
                if sum(map(_share, left)) < lacking:
                    continue
                seen = replace(state, candidates=candidates(left, [*map(_share, left)], habit))
                demand = Demand(gpus=lacking, waiting_gpus=job.gpus, since_s=since_s)
                made = policy.decide(seen, demand)
                if not made.evictions:
                    return Choice(ask_again_s=made.ask_again_s)
                evictions = made.evictions
            cost = _cost_gpu_s([one for one in left if _stopped(one, evictions)], state, habit)
            if best is None or cost < best[0]:
                best = cost, name, evictions
        if best is None:
            return Choice()
        chosen.append(best[1])
        taken |= {eviction.job: eviction for eviction in best[2]}
    return Choice(evictions=tuple(taken.values()), nodes=tuple(sorted(chosen)) if taken else ())


def _share(job: QueuedJob) -> int:
    """GPUs that it holds on each of its nodes."""
    return job.gpus // max(1, len(job.node_names))


def _stopped(job: QueuedJob, evictions: Sequence[Eviction]) -> bool:
    return any(eviction.job == job.number for eviction in evictions)


def _cost_gpu_s(stopped: Sequence[QueuedJob], state: State, habit: Habit) -> float:
    """What stopping these costs, whole jobs counted."""
    if not stopped:
        return 0.0
    seen = candidates(stopped, [job.gpus for job in stopped], habit)
    lost_s = seen.lost_s(state.now_s)
    saves = seen.saves_on_signal & (seen.save_s <= state.grace_s)
    lost_s = np.where(saves, np.minimum(lost_s, seen.save_s), lost_s)
    return float(((lost_s + seen.restart_s * (1 + seen.preemptions)) * seen.gpus).sum())
