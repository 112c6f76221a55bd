"""The simulator's rules once more: slow and obvious, one second at a time, no queues, no events.

Every second looks at every job. All times must be whole seconds. It shares the policies (pure
functions) and the forecast with the simulator, and no line of the simulator itself.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchett.schedule import Candidates, Demand, Policy, Settings, State, Workload
from torchett.schedule.simulation.forecast import ClaimForecast


@dataclass
class Job:
    number: int
    vc: int
    gpus: int
    submit: int
    run: int
    interval: int
    save: int
    restart: int
    on_signal: bool
    state: str = "future"  # future, queued, claiming, running, leaving, held, done
    within: bool = False
    safe: int = 0  # seconds of work that survive anything
    work: int = 0  # seconds of work in this attempt
    restart_left: int = 0
    started: int = 0
    claimed: int = 0
    gone: int = 0  # when a leaving job frees its GPUs
    ready: int = 0  # when a held job may start again
    planned: float | None = None
    preempts: int = 0
    waited: int = 0
    ended: int = 0

    def saved(self) -> int:
        """Work of this attempt that a durable save holds, by looking at every save there was."""
        best, begun = 0, self.interval
        while begun + self.save <= self.work:
            best, begun = begun, begun + self.interval
        return best


def simulate_slowly(work: Workload, policy: Policy, settings: Settings) -> dict[str, Any]:
    jobs = [
        Job(
            number=i,
            vc=int(work.vc[i]),
            gpus=int(work.job_gpus[i]),
            submit=int(work.submit_s[i]),
            run=int(work.run_s[i]),
            interval=int(work.checkpoint_s[i]),
            save=int(work.save_s[i]),
            restart=int(work.restart_s[i]),
            on_signal=bool(work.saves_on_signal[i]),
        )
        for i in range(len(work))
    ]
    total: dict[str, int] = dict.fromkeys(
        ("work", "lost", "restarting", "leaving", "idle", "quota_wait"), 0
    )
    forecast = ClaimForecast(gpus=work.gpus)
    spare = work.gpus - max(job.gpus for job in jobs)
    used, ask, undecided, now = 0, math.inf, False, 0
    claims: list[Job] = []

    def held(*states: str) -> int:
        return sum(job.gpus for job in jobs if job.state in states)

    def free() -> int:
        return work.gpus - held("running", "leaving")

    def room(vc: int) -> int:
        mine = [job for job in jobs if job.vc == vc]
        taken = sum(j.gpus for j in mine if j.state == "running" and j.within)
        return int(work.quotas[vc]) - taken - sum(j.gpus for j in mine if j.state == "claiming")

    def start(job: Job, within: bool) -> None:
        job.state, job.within, job.started, job.work = "running", within, now, 0
        job.restart_left = job.restart if job.preempts else 0

    def signal(job: Job) -> None:
        kept = job.saved()
        takes = settings.exit_s
        if job.on_signal:
            takes += min(job.save, settings.grace_s)
            if job.save <= settings.grace_s:
                kept = job.work
        total["lost"] += (job.work - kept) * job.gpus
        job.safe += kept
        job.preempts += 1
        job.state, job.planned, job.gone = "leaving", None, now + int(takes)

    def lacking() -> int:
        planned = sum(job.gpus for job in jobs if job.planned is not None)
        return sum(job.gpus for job in claims) - free() - held("leaving") - planned

    def spare_plans() -> None:
        planned = [job for job in jobs if job.planned is not None]
        for job in sorted(planned, key=lambda job: (-(job.planned or 0), -job.number)):
            if job.gpus <= -lacking():
                job.planned = None

    def candidates() -> Candidates:
        found = [
            job for job in jobs if job.state == "running" and not job.within and job.planned is None
        ]
        begins = [now - job.work + job.restart_left for job in found]
        pairs = list(zip(found, begins, strict=True))
        return Candidates(
            job=np.array([j.number for j in found], dtype=np.int64),
            gpus=np.array([j.gpus for j in found], dtype=np.int64),
            started_s=np.array([j.started for j in found], dtype=np.float64),
            durable_s=np.array([b + j.saved() for j, b in pairs], dtype=np.float64),
            due_s=np.array(
                [b + j.saved() + j.interval + j.save for j, b in pairs], dtype=np.float64
            ),
            save_s=np.array([j.save for j in found], dtype=np.float64),
            saves_on_signal=np.array([j.on_signal for j in found], dtype=np.bool_),
            restart_s=np.array([j.restart for j in found], dtype=np.float64),
            preemptions=np.array([j.preempts for j in found], dtype=np.int64),
        )

    while any(job.state != "done" for job in jobs):
        # What happened by now.
        for job in jobs:
            if job.state == "running" and job.safe + job.work == job.run and not job.restart_left:
                job.state, job.ended, job.planned = "done", now, None
                total["work"] += job.run * job.gpus
                forecast.observe(now, 0, job.gpus)
            elif job.state == "leaving" and now == job.gone and settings.hold_s:
                job.state, job.ready = "held", now + int(settings.hold_s)
            elif now == {
                "leaving": job.gone, "held": job.ready, "future": job.submit
            }.get(job.state):  # fmt: skip
                job.state = "queued"
        for job in jobs:
            if job.planned == now:
                signal(job)
        # One scheduling pass. Promote, oldest first.
        for vc in range(len(work.quotas)):
            while True:
                fits = [
                    job
                    for job in jobs
                    if job.vc == vc
                    and job.state == "running"
                    and not job.within
                    and job.gpus <= room(vc)
                ]
                if not fits:
                    break
                oldest = min(fits, key=lambda job: (job.started, job.number))
                oldest.within, oldest.planned = True, None
        # Claim, in order of submission.
        for job in jobs:
            if job.state == "queued" and job.gpus <= room(job.vc):
                job.state, job.claimed = "claiming", now
                claims.append(job)
                forecast.observe(now, job.gpus, 0)
                undecided = True
        # Serve, first come first.
        for job in list(claims):
            if job.gpus <= free():
                claims.remove(job)
                start(job, within=True)
        spare_plans()
        if lacking() > 0 and policy.preempts and (undecided or now >= ask or ask == math.inf):
            undecided = False
            state = State(
                now_s=float(now),
                candidates=candidates(),
                grace_s=settings.grace_s,
                used_gpu_s=float(used),
                quota_wait_gpu_s=float(total["quota_wait"]),
                seed=work.seed,
            )
            demand = Demand(
                gpus=lacking(),
                waiting_gpus=sum(job.gpus for job in claims),
                since_s=float(min(job.claimed for job in claims)),
            )
            decision = policy.decide(state, demand)
            for eviction in decision.evictions:
                if eviction.at_s <= now:
                    signal(jobs[eviction.job])
                else:
                    jobs[eviction.job].planned = eviction.at_s
            ask = decision.ask_again_s
        if not claims:
            ask = math.inf
        # Lend, in order of submission.
        if policy.lends:
            pressure = forecast.pressure(now)
            for job in jobs:
                if job.state == "queued":
                    kept = min(policy.reserve(pressure, job.gpus), spare)
                    if job.gpus + kept <= free() - sum(claim.gpus for claim in claims):
                        start(job, within=False)
        assert free() >= 0
        for vc, quota in enumerate(work.quotas):
            assert room(vc) >= 0, quota
        # One second passes.
        total["idle"] += free()
        total["quota_wait"] += sum(job.gpus for job in claims)
        used += held("running", "leaving")
        for job in jobs:
            if job.state in ("queued", "claiming", "held"):
                job.waited += 1
            elif job.state == "leaving":
                total["leaving"] += job.gpus
            elif job.state == "running" and job.restart_left:
                job.restart_left -= 1
                total["restarting"] += job.gpus
            elif job.state == "running":
                job.work += 1
        now += 1
        assert now < 30_000, "jobs that never run"
    return total | {
        "ended": [job.ended for job in jobs],
        "preempts": [job.preempts for job in jobs],
        "waited": [job.waited for job in jobs],
    }
