"""What a simulated schedule cost: the figures that policies are compared by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from torchett.schedule.simulation.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """One policy on one workload; its GPU-hours add up.

    work + lost + restarting + leaving + failures + idle = capacity × time
    """

    jobs: int
    unfinished: int  # that never ran: larger than their VC's quota, where nothing is lent
    preemptions: int
    preempts_per_job: float
    most_preempts: int  # of one job
    work_gpu_h: float  # that survived
    lost_gpu_h: float  # work thrown away by preemptions
    restarting_gpu_h: float  # after preemptions, until training goes on
    leaving_gpu_h: float  # from the signal until the GPUs are free
    failures_gpu_h: float  # lost to failures, and restarting after them
    idle_gpu_h: float
    capacity_gpu_h: float  # GPUs × time until the last job's end
    quota_wait_gpu_h: float
    quota_wait_percent: float  # of the GPU-hours of work
    longest_quota_wait_s: float
    jct_p50_s: float  # from submission to end
    jct_p95_s: float
    queue_s: float  # mean over jobs; waits after preemptions included
    events: int


def outcome(
    work: Workload,
    *,
    ended_s: Sequence[float],  # nan: never ran
    waited_s: Sequence[float],
    preemptions: Sequence[int],
    gpu_s: Mapping[str, float],
    over_s: float,
    longest_wait_s: float,
    events: int,
) -> SimulationResult:
    """The figures of a run that is over, from what it summed up for each job and use of GPUs."""
    took = np.array(ended_s) - work.submit_s
    hours = {use: seconds / 3600.0 for use, seconds in gpu_s.items()}
    return SimulationResult(
        jobs=len(took),
        unfinished=int(np.isnan(took).sum()),
        preemptions=sum(preemptions),
        preempts_per_job=sum(preemptions) / len(took),
        most_preempts=max(preemptions),
        work_gpu_h=hours.get("work", 0.0),
        lost_gpu_h=hours.get("lost", 0.0),
        restarting_gpu_h=hours.get("restarting", 0.0),
        leaving_gpu_h=hours.get("leaving", 0.0),
        failures_gpu_h=hours.get("failures", 0.0),
        idle_gpu_h=hours["idle"],
        capacity_gpu_h=work.gpus * over_s / 3600.0,
        quota_wait_gpu_h=hours["quota_wait"],
        quota_wait_percent=100 * gpu_s["quota_wait"] / gpu_s["work"],
        longest_quota_wait_s=longest_wait_s,
        jct_p50_s=float(np.nanquantile(took, 0.5)),
        jct_p95_s=float(np.nanquantile(took, 0.95)),
        queue_s=float(np.mean(waited_s)),
        events=events,
    )


def mean(outcomes: Sequence[SimulationResult]) -> dict[str, float]:
    """Each figure's mean over seeds; the largest of what is a maximum."""
    found = {}
    for each in fields(SimulationResult):
        values = [float(getattr(outcome, each.name)) for outcome in outcomes]
        largest = each.name in ("most_preempts", "longest_quota_wait_s")
        found[each.name] = max(values) if largest else float(np.mean(values))
    return found
