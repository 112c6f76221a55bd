"""Jobs on borrowed GPUs: which may be stopped, which are to be, and what a policy is shown."""

from collections.abc import Sequence

import numpy as np

from torchett.schedule.simulation.job_set import JobSet
from torchett.schedule.simulation.workload import Workload
from torchett.schedule.values import Candidates, Floats, Ints

TICK_S = 1e-6  # a save is durable at its time, not a rounding error later


class Loans:
    """Borrowed jobs are in `borrowed`, or in `planned` once they are to be signalled."""

    def __init__(self, count: int, gpus: Sequence[int]) -> None:
        self._gpus = gpus  # of each job
        self.borrowed = JobSet(count)
        self.planned: dict[int, float] = {}  # job → when it will be signalled
        self.planned_gpus = 0

    def plan(self, job: int, at_s: float) -> None:
        self.borrowed.remove(job)
        self.planned[job] = at_s
        self.planned_gpus += self._gpus[job]

    def drop(self, job: int, *, lend: bool = True) -> None:
        """Signal the job no more; it stays on borrowed GPUs unless it has left them."""
        del self.planned[job]
        self.planned_gpus -= self._gpus[job]
        if lend:
            self.borrowed.add(job)

    def spare(self, over: int) -> None:
        """Drop the latest of the plans, as far as the rest leaves `over` GPUs too many."""
        for job, _ in sorted(self.planned.items(), key=lambda item: (-item[1], -item[0])):
            if self._gpus[job] <= over:
                over -= self._gpus[job]
                self.drop(job)


def shown(
    work: Workload, jobs: Ints, started_s: Floats, begin_s: Floats, preempts: Ints, now_s: float
) -> Candidates:
    """These borrowed jobs as a policy sees them; the columns are theirs alone."""
    interval, save = work.checkpoint_s[jobs], work.save_s[jobs]
    saves = np.maximum(np.floor((now_s - begin_s - save + TICK_S) / interval), 0.0)
    return Candidates(
        job=jobs,
        gpus=work.job_gpus[jobs],
        started_s=started_s,
        durable_s=begin_s + saves * interval,
        due_s=begin_s + (saves + 1) * interval + save,
        save_s=save,
        saves_on_signal=work.saves_on_signal[jobs],
        restart_s=work.restart_s[jobs],
        preemptions=preempts,
    )
