"""The guard: asks Slurm every second, and stops jobs for those that are owed GPUs.

squeue, sinfo ─► claims that lack GPUs ─► policy ─► Reclaim: signal, wait, requeue, reserve
     ▲                                                  │
     └────────────────── every second ──────────────────┘
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchett.model.errors import RunError
from torchett.schedule.policy import Policy
from torchett.schedule.slurm.choice import Choice, Habit, candidates, choose, claims, victims
from torchett.schedule.slurm.cluster import Node, QueuedJob, Slurm
from torchett.schedule.slurm.reclaim import RESERVATION, Leaver, Reclaim
from torchett.schedule.values import State

Tell = Callable[[dict[str, Any]], None]
_SERVED_SOON_S = 3.0  # for Slurm to start by itself a job that fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which jobs may preempt which, and how."""

    policy: Policy
    preempting: frozenset[str]  # QOS
    preempted: frozenset[str]
    habit: Habit = field(default_factory=Habit)
    signal: str = "USR1"
    dry: bool = False  # say what would be done, and do nothing


class Guard:
    """What is under way; `round` is called every second or so."""

    def __init__(self, slurm: Slurm, rules: Rules, tell: Tell) -> None:
        self.slurm, self.rules, self._tell = slurm, rules, tell
        self.reclaims: dict[int, Reclaim] = {}
        self._since: dict[int, float] = {}  # when a claim was seen first
        self._ask_s: dict[int, float] = {}
        self._said: set[int] = set()
        self._used_gpu_s = self._waited_gpu_s = 0.0
        self._seen_s: float | None = None

    def tidy(self) -> None:
        """Delete the reservations that a guard before this one left."""
        for name in self.slurm.reservations():
            number = name.removeprefix(RESERVATION)
            if name.startswith(RESERVATION) and number.isdigit():
                self.slurm.unreserve(name, int(number))
                self._say("tidied", reservation=name)

    def round(self, now_s: float) -> None:
        """One look at Slurm, and what follows from it."""
        jobs, nodes = self.slurm.jobs(), self.slurm.nodes()
        waiting = claims(jobs, self.rules.preempting)
        self._count(jobs, waiting, now_s)
        for reclaim in list(self.reclaims.values()):
            try:
                reclaim.step(self.slurm, jobs, now_s)
            except RunError as error:
                self._say("error", job=reclaim.claim.number, said=str(error))
            if reclaim.over:
                reclaim.release(self.slurm)
                del self.reclaims[reclaim.claim.number]
        for job in waiting:
            if job.number not in self.reclaims and now_s >= self._ask_s.get(job.number, 0.0):
                self._consider(job, jobs, nodes, now_s)

    def close(self) -> None:
        """Give back what is reserved: Slurm goes on by itself."""
        for reclaim in self.reclaims.values():
            reclaim.release(self.slurm)

    # Behind it -------------------------------------------------------------------------------

    def _count(self, jobs: dict[int, QueuedJob], waiting: list[QueuedJob], now_s: float) -> None:
        """What the policy's budget is made of: GPU-seconds used, and waited within quota."""
        passed = 0.0 if self._seen_s is None else max(0.0, now_s - self._seen_s)
        self._seen_s = now_s
        self._used_gpu_s += passed * sum(job.gpus for job in jobs.values() if job.holds)
        self._waited_gpu_s += passed * sum(job.gpus for job in waiting)
        numbers = {job.number for job in waiting}
        for job in waiting:
            self._since.setdefault(job.number, now_s)
        for known in (self._since, self._ask_s):
            for number in [number for number in known if number not in numbers]:
                del known[number]
        self._said &= numbers

    def _consider(
        self, job: QueuedJob, jobs: dict[int, QueuedJob], nodes: dict[str, Node], now_s: float
    ) -> None:
        promised = {name for reclaim in self.reclaims.values() for name in reclaim.nodes}
        leaving = {leaver.number for r in self.reclaims.values() for leaver in r.leavers}
        open_nodes = {name: node for name, node in nodes.items() if name not in promised}
        may_go = victims(jobs, self.rules.preempted)
        running = [one for one in may_go if one.number not in leaving]
        running = [one for one in running if not set(one.node_names) & promised]
        state = State(
            now_s=now_s,
            candidates=candidates([], [], self.rules.habit),
            grace_s=self.rules.habit.grace_s,
            used_gpu_s=self._used_gpu_s,
            quota_wait_gpu_s=self._waited_gpu_s,
        )
        since_s = self._since[job.number]
        habit = self.rules.habit
        made = choose(
            self.rules.policy, job, running, open_nodes, state, since_s=since_s, habit=habit
        )
        if made.evictions:
            self._begin(job, made, jobs, now_s)
        else:
            later_s = made.ask_again_s if made.ask_again_s < math.inf else now_s
            self._ask_s[job.number] = later_s
            if job.number not in self._said and now_s - since_s > _SERVED_SOON_S:
                self._said.add(job.number)
                self._say("waits", job=job.number, gpus=job.gpus, reason=job.reason)

    def _begin(
        self, job: QueuedJob, made: Choice, jobs: dict[int, QueuedJob], now_s: float
    ) -> None:
        leavers = [
            Leaver(
                number=eviction.job,
                gpus=jobs[eviction.job].gpus,
                at_s=eviction.at_s,
                restarts=jobs[eviction.job].restarts,
                durable_step=_durable_step(jobs[eviction.job]),
            )
            for eviction in made.evictions
        ]
        shown = [{"job": one.number, "gpus": one.gpus, "at_s": one.at_s} for one in leavers]
        self._say("claims", job=job.number, gpus=job.gpus, stops=shown, nodes=list(made.nodes))
        if self.rules.dry:
            self._ask_s[job.number] = now_s + 60.0
            return
        reclaim = Reclaim(
            claim=job,
            nodes=made.nodes,
            leavers=leavers,
            grace_s=self.rules.habit.grace_s,
            signal=self.rules.signal,
            say=self._say,
        )
        self.reclaims[job.number] = reclaim
        reclaim.step(self.slurm, jobs, now_s)

    def _say(self, event: str, **facts: Any) -> None:
        self._tell({"t": round(time.time(), 3), "event": event, **facts})


def _durable_step(job: QueuedJob) -> int:
    return job.beacon.durable_step if job.beacon is not None else -1
