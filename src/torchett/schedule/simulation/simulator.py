"""A cluster played event by event: what a policy costs on a trace.

All that happens at one instant is applied first: ends, failures, GPUs given back, signals,
arrivals. Then one scheduling pass:

    1. promote   borrowed jobs become jobs within quota where their VC has room, oldest first
    2. claim     waiting jobs that fit their VC's quota claim it, in order of submission
    3. serve     claims start, first come first, where enough GPUs are free
    4. spare     evictions that are planned but not needed any more are dropped
    5. evict     claims that lack GPUs are put to the policy
    6. lend      waiting jobs start on borrowed GPUs, in order of submission; what claims wait
                 for, and the policy's reserve, is not lent

A job's GPUs are one gang; where they are does not matter (no nodes). A job that does not fit is
skipped, not waited for. Jobs preempted wait again under their old submission time, once the
scheduler's hold is over.

Cost of an event: heaps, so O(log jobs) plus O(sizes of jobs that occur), about a dozen. Choosing
victims reads one numpy row for each borrowed job, only when claims lack GPUs.
"""

import math
from collections import defaultdict
from heapq import heappop, heappush

import numpy as np

from torchett.schedule.policy import Policy
from torchett.schedule.simulation.draws import exponential
from torchett.schedule.simulation.forecast import ClaimForecast
from torchett.schedule.simulation.loans import TICK_S, Loans, shown
from torchett.schedule.simulation.outcome import SimulationResult, outcome
from torchett.schedule.simulation.waiting import QUEUED, earliest
from torchett.schedule.simulation.workload import Settings, Workload
from torchett.schedule.values import Candidates, Demand, State

# Kinds of events, in the order in which those of one instant are applied.
_END, _FAIL, _FREE, _READY, _SIGNAL, _ASK = range(6)
# States of a job, beside QUEUED.
_CLAIMING, _RUNNING, _LEAVING, _HELD, _DONE = range(1, 6)


def simulate(
    workload: Workload, policy: Policy, settings: Settings | None = None
) -> SimulationResult:
    """Play the workload to the end of its last job."""
    return Simulation(workload, policy, settings or Settings()).run()


class Simulation:
    """The state of one run. Lists for what events touch, numpy columns for what policies read."""

    def __init__(self, work: Workload, policy: Policy, settings: Settings) -> None:
        count = len(work)
        self.work, self.policy, self.settings = work, policy, settings
        # The workload, as lists: their items are read faster than a numpy array's.
        self.submit: list[float] = work.submit_s.tolist()
        self.vc: list[int] = work.vc.tolist()
        self.gpus: list[int] = work.job_gpus.tolist()
        self.run_s: list[float] = work.run_s.tolist()
        self.interval: list[float] = work.checkpoint_s.tolist()
        self.save: list[float] = work.save_s.tolist()
        self.restart: list[float] = work.restart_s.tolist()
        self.signals: list[bool] = work.saves_on_signal.tolist()
        self.fails: list[float] = work.failures_per_s.tolist()
        # Jobs.
        self.state = [QUEUED] * count
        self.within = [False] * count  # runs within quota
        self.epoch = [0] * count  # events of an older epoch are void
        self.done = [0.0] * count  # work that is safe
        self.start = [0.0] * count  # of this attempt
        self.begin = [0.0] * count  # of training: after the restart
        self.since = [0.0] * count  # waits since
        self.waited = [0.0] * count
        self.ended = [math.nan] * count
        self.phase = [0.0] * count  # when the restart before `begin` began
        self.failed = [False] * count  # it restarts, or restarted, after a failure
        self.preempts = [0] * count
        self.draws = [0] * count
        # What candidates show to a policy.
        self.a_start, self.a_begin = np.zeros(count), np.zeros(count)
        self.a_preempts = np.zeros(count, dtype=np.int64)
        self.loans = Loans(count, self.gpus)
        # Queues: heaps of job numbers by size; entries of jobs that left them are skipped.
        self.queue: dict[int, list[int]] = {size: [] for size in sorted(set(self.gpus))}
        self.vc_queue: list[dict[int, list[int]]] = [{} for _ in work.vcs]
        self.vc_lent: list[dict[int, list[tuple[float, int]]]] = [{} for _ in work.vcs]
        self.room: list[int] = work.quotas.tolist()  # GPUs of each quota that are not claimed
        self.dirty: set[int] = set()
        self.claims: dict[int, float] = {}  # job → since when, in order
        # GPUs.
        self.free = work.gpus
        self.queued = 0  # jobs that wait, claims included
        self.claims_gpus = self.leaving_gpus = 0
        self.events: list[tuple[float, int, int, int]] = []
        self.ask_s = math.inf
        self.undecided = False
        self.forecast = ClaimForecast(gpus=work.gpus)
        self.spare_gpus = work.gpus - max(self.gpus)  # no reserve keeps the largest job out
        # Sums, in GPU-seconds.
        self.sums: dict[str, float] = defaultdict(float)
        self.used = self.idle = self.quota_wait = self.longest_wait = 0.0
        self.now, self.steps = 0.0, 0

    # The loop ----------------------------------------------------------------------------------

    def run(self) -> SimulationResult:
        submit, events, count = self.submit, self.events, len(self.submit)
        arrived = 0
        while arrived < count or events:
            now = submit[arrived] if arrived < count else math.inf
            if events and events[0][0] < now:
                now = events[0][0]
            self._pass_time(now)
            while events and events[0][0] == now:
                _, kind, job, epoch = heappop(events)
                self._apply(kind, job, epoch)
            while arrived < count and submit[arrived] == now:
                self._enqueue(arrived)
                arrived += 1
            self._schedule()
        return outcome(
            self.work,
            ended_s=self.ended,
            waited_s=self.waited,
            preemptions=self.preempts,
            gpu_s=self.sums | {"idle": self.idle, "quota_wait": self.quota_wait},
            over_s=self.now,
            longest_wait_s=self.longest_wait,
            events=self.steps,
        )

    def _pass_time(self, now: float) -> None:
        passed = now - self.now
        if passed > 0:
            self.idle += passed * self.free
            self.used += passed * (self.work.gpus - self.free)
            self.quota_wait += passed * self.claims_gpus
            self.now = now

    def _apply(self, kind: int, job: int, epoch: int) -> None:
        self.steps += 1
        if kind == _ASK:
            return  # the pass after it does the asking
        if epoch != self.epoch[job]:
            return
        if kind == _END:
            self._end(job)
        elif kind == _FAIL:
            self._fail(job)
        elif kind == _FREE:
            self._leave(job)
        elif kind == _READY:
            self._enqueue(job)
        elif self.loans.planned.get(job) == self.now:
            self.loans.drop(job)
            self._signal(job)

    # Jobs --------------------------------------------------------------------------------------

    def _enqueue(self, job: int) -> None:
        self.steps += 1
        size, vc = self.gpus[job], self.vc[job]
        if self.state[job] != _HELD:
            self.since[job] = self.now  # a hold counts as waiting
        self.state[job] = QUEUED
        self.queued += 1
        heappush(self.queue[size], job)
        heappush(self.vc_queue[vc].setdefault(size, []), job)
        self.dirty.add(vc)

    def _start(self, job: int, *, within: bool) -> None:
        now, size = self.now, self.gpus[job]
        self.state[job] = _RUNNING
        self.within[job] = within
        self.waited[job] += now - self.since[job]
        self.free -= size
        self.queued -= 1
        self.start[job] = self.a_start[job] = now
        self.failed[job] = False
        self._train_from(job, now + (self.restart[job] if self.preempts[job] else 0.0))
        if not within:
            self.loans.borrowed.add(job)
            lent = self.vc_lent[self.vc[job]].setdefault(size, [])
            heappush(lent, (now, job))

    def _train_from(self, job: int, begin: float) -> None:
        """Train from that time on, until the end or the next failure."""
        self.phase[job] = self.now
        self.begin[job] = self.a_begin[job] = begin
        self.epoch[job] += 1
        end = begin + self.run_s[job] - self.done[job]
        rate = self.fails[job]
        if rate > 0:
            fails = begin + self._draw(job) / rate
            if fails < end:
                heappush(self.events, (fails, _FAIL, job, self.epoch[job]))
                return
        heappush(self.events, (end, _END, job, self.epoch[job]))

    def _book_restart(self, job: int) -> None:
        took = min(self.now, self.begin[job]) - self.phase[job]
        self.sums["failures" if self.failed[job] else "restarting"] += took * self.gpus[job]

    def _draw(self, job: int) -> float:
        """A job's next exponential number: the same under every policy."""
        self.draws[job] += 1
        return exponential(self.work.seed, job, self.draws[job])

    def _safe(self, job: int) -> float:
        """Work of this attempt that its last durable save holds."""
        interval = self.interval[job]
        saves = math.floor((self.now - self.begin[job] - self.save[job] + TICK_S) / interval)
        return max(0, saves) * interval

    def _end(self, job: int) -> None:
        size = self.gpus[job]
        self._release(job)
        self.state[job] = _DONE
        self.ended[job] = self.now
        self.free += size
        self.sums["work"] += self.run_s[job] * size
        self._book_restart(job)
        self.forecast.observe(self.now, 0, size)

    def _fail(self, job: int) -> None:
        """Back to the last durable save, on the same GPUs."""
        if job in self.loans.planned:
            self.loans.drop(job)  # what it costs to stop has changed
        safe = self._safe(job)
        self._book_restart(job)
        self.sums["failures"] += (self.now - self.begin[job] - safe) * self.gpus[job]
        self.done[job] += safe
        self.failed[job] = True
        self._train_from(job, self.now + self.restart[job])

    def _signal(self, job: int) -> None:
        """Preempt: from now on the job trains no more."""
        now, size = self.now, self.gpus[job]
        grace, leaves = self.settings.grace_s, self.settings.exit_s
        self._release(job)
        self.epoch[job] += 1
        self.state[job] = _LEAVING
        self.preempts[job] += 1
        self.a_preempts[job] += 1
        trained = max(0.0, now - self.begin[job])
        safe = self._safe(job)
        if self.signals[job]:
            saves_in_time = self.save[job] <= grace
            leaves += min(self.save[job], grace)
            if saves_in_time:
                safe = trained
        self._book_restart(job)
        self.done[job] += safe
        self.sums["lost"] += (trained - safe) * size
        self.sums["leaving"] += leaves * size
        self.leaving_gpus += size
        heappush(self.events, (now + leaves, _FREE, job, self.epoch[job]))

    def _leave(self, job: int) -> None:
        self.epoch[job] += 1
        self.leaving_gpus -= self.gpus[job]
        self.free += self.gpus[job]
        if self.settings.hold_s > 0:
            self.state[job], self.since[job] = _HELD, self.now
            ready_s = self.now + self.settings.hold_s
            heappush(self.events, (ready_s, _READY, job, self.epoch[job]))
        else:
            self._enqueue(job)

    def _release(self, job: int) -> None:
        """The job runs no more: give back its quota, or forget its loan."""
        if self.within[job]:
            self.room[self.vc[job]] += self.gpus[job]
            self.dirty.add(self.vc[job])
        elif job in self.loans.planned:
            self.loans.drop(job, lend=False)
        else:
            self.loans.borrowed.remove(job)

    # The pass ----------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if self.dirty:
            new: list[int] = []
            for vc in sorted(self.dirty):
                self._promote(vc)
                new += self._claims_of(vc)
            self.dirty.clear()
            for job in sorted(new):
                self.claims[job] = self.now
                self.claims_gpus += self.gpus[job]
                self.forecast.observe(self.now, self.gpus[job], 0)
                self.undecided = True
        if self.claims:
            self._serve()
            if self.loans.planned:
                self._spare()
            lacking = self.claims_gpus - self.free - self.leaving_gpus - self.loans.planned_gpus
            asked = self.undecided or self.now >= self.ask_s or self.ask_s == math.inf
            if lacking > 0 and self.policy.preempts and asked:
                self._evict(lacking)
        if not self.claims:
            self.ask_s = math.inf
            if self.loans.planned:
                self._spare()
        if self.queued and self.free > self.claims_gpus and self.policy.lends:
            self._lend()

    def _promote(self, vc: int) -> None:
        sizes = self.vc_lent[vc]
        while self.room[vc] > 0:
            best: tuple[float, int] | None = None
            for size, heap in sizes.items():
                while heap and not self._is_lent(*heap[0]):
                    heappop(heap)
                if size <= self.room[vc] and heap and (best is None or heap[0] < best):
                    best = heap[0]
            if best is None:
                return
            job = best[1]
            if job in self.loans.planned:
                self.loans.drop(job)
            self.loans.borrowed.remove(job)
            self.within[job] = True
            self.room[vc] -= self.gpus[job]

    def _is_lent(self, start: float, job: int) -> bool:
        return self.state[job] == _RUNNING and not self.within[job] and self.start[job] == start

    def _claims_of(self, vc: int) -> list[int]:
        """Waiting jobs that now fit their VC's quota."""
        found: list[int] = []
        queues = self.vc_queue[vc]
        while self.room[vc] > 0:
            job = earliest(queues, self.room[vc], self.state)
            if job < 0:
                break
            heappop(queues[self.gpus[job]])
            self.state[job] = _CLAIMING
            self.room[vc] -= self.gpus[job]
            found.append(job)
        return found

    def _serve(self) -> None:
        started = []
        for job in self.claims:
            if self.free <= 0:
                break
            if self.gpus[job] <= self.free:
                self._start(job, within=True)
                started.append(job)
        for job in started:
            self.longest_wait = max(self.longest_wait, self.now - self.claims.pop(job))
            self.claims_gpus -= self.gpus[job]

    def _spare(self) -> None:
        """Drop the latest of the planned evictions while the others are enough."""
        coming = self.free + self.leaving_gpus + self.loans.planned_gpus
        self.loans.spare(coming - self.claims_gpus)

    def _evict(self, lacking: int) -> None:
        self.undecided = False
        state = State(
            now_s=self.now,
            candidates=self._candidates(),
            grace_s=self.settings.grace_s,
            used_gpu_s=self.used,
            quota_wait_gpu_s=self.quota_wait,
            seed=self.work.seed,
        )
        since = min(self.claims.values())
        demand = Demand(gpus=lacking, waiting_gpus=self.claims_gpus, since_s=since)
        decision = self.policy.decide(state, demand)
        for eviction in decision.evictions:
            if eviction.at_s <= self.now:
                self._signal(eviction.job)
            else:
                job, at_s = eviction.job, eviction.at_s
                self.loans.plan(job, at_s)
                heappush(self.events, (at_s, _SIGNAL, job, self.epoch[job]))
        self.ask_s = decision.ask_again_s
        if self.ask_s < math.inf:
            heappush(self.events, (self.ask_s, _ASK, -1, 0))

    def _candidates(self) -> Candidates:
        jobs = self.loans.borrowed.sorted()
        started_s, begin_s = self.a_start[jobs], self.a_begin[jobs]
        preempts = self.a_preempts[jobs]
        return shown(self.work, jobs, started_s, begin_s, preempts, self.now)

    def _lend(self) -> None:
        pressure, policy = self.forecast.pressure(self.now), self.policy
        kept = {size: min(policy.reserve(pressure, size), self.spare_gpus) for size in self.queue}
        while True:
            job = earliest(self.queue, self.free - self.claims_gpus, self.state, kept)
            if job < 0:
                return
            heappop(self.queue[self.gpus[job]])
            self._start(job, within=False)
