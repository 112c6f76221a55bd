"""One job's claim and the jobs that leave for it, from the first signal to the last restart.

claim     waits ─ reserved ───────────────────────── starts ─ unreserved
victim    trains ─ USR1 ─ saves ─ leaves ─ PENDING (BeginTime) ─ StartTime=now ─ eligible
                   └──── at most the grace, then requeued by force ────┘
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchett.model.errors import RunError
from torchett.schedule.slurm.cluster import QueuedJob, Slurm

RESERVATION = "ett-guard-"
Say = Callable[..., None]  # an event and its facts


@dataclass(slots=True, kw_only=True)
class Leaver:
    """A job that is to leave, and how far it is."""

    number: int
    gpus: int
    at_s: float  # when it is signalled
    restarts: int  # Slurm's count before
    durable_step: int
    signalled_s: float | None = None
    forced: bool = False
    freed_s: float | None = None
    over: bool = False  # nothing is left to do about it


@dataclass(slots=True, kw_only=True)
class Reclaim:
    """GPUs on their way to one job."""

    claim: QueuedJob
    nodes: tuple[str, ...]
    leavers: list[Leaver]
    grace_s: float
    signal: str
    say: Say
    reserved: bool = field(default=False)
    served: bool = field(default=False)

    @property
    def over(self) -> bool:
        return self.served and all(leaver.over for leaver in self.leavers)

    @property
    def name(self) -> str:
        return f"{RESERVATION}{self.claim.number}"

    def step(self, slurm: Slurm, jobs: Mapping[int, QueuedJob], now_s: float) -> None:
        """Do what is due; an answer that Slurm owes is asked for again in the next round."""
        claim = jobs.get(self.claim.number)
        if not self.served and (claim is None or not claim.waits):
            self._serve(slurm, claim, now_s)
        for leaver in self.leavers:
            if not leaver.over:
                self._step(leaver, slurm, jobs.get(leaver.number), now_s)

    def release(self, slurm: Slurm) -> None:
        """Give the reservation back."""
        if self.reserved:
            self.reserved = False
            try:
                slurm.unreserve(self.name, self.claim.number)
            except RunError as error:
                self.say("error", job=self.claim.number, said=str(error))

    # Behind it -------------------------------------------------------------------------------

    def _serve(self, slurm: Slurm, claim: QueuedJob | None, now_s: float) -> None:
        self.served = True
        started = claim is not None and claim.holds
        self.say("started" if started else "claim_gone", job=self.claim.number)
        self.release(slurm)
        for leaver in self.leavers:
            if leaver.signalled_s is None:
                leaver.over = True  # it was not needed after all

    def _step(self, leaver: Leaver, slurm: Slurm, job: QueuedJob | None, now_s: float) -> None:
        if leaver.signalled_s is None:
            fresh = job is not None and job.beacon is not None
            saved = fresh and job.beacon.durable_step > leaver.durable_step  # type: ignore[union-attr]
            if job is None or not job.runs:
                leaver.over = True  # it ended by itself
            elif now_s >= leaver.at_s or saved:
                self._signal(leaver, slurm, job, now_s)
            return
        if job is None:
            job = slurm.job(leaver.number)
        again = job is not None and job.runs and job.restarts > leaver.restarts
        gone = job is None or not job.holds or again
        if gone and leaver.freed_s is None:
            leaver.freed_s = now_s
            self.say("freed", job=leaver.number, after_s=round(now_s - leaver.signalled_s, 2))
        if not gone:
            if now_s - leaver.signalled_s >= self.grace_s and not leaver.forced:
                leaver.forced = True
                self.say("forced", job=leaver.number, after_s=self.grace_s)
                slurm.requeue(leaver.number)
            return
        self._have_it_run_again(leaver, slurm, job)

    def _signal(self, leaver: Leaver, slurm: Slurm, job: QueuedJob, now_s: float) -> None:
        if not self.reserved:
            try:
                slurm.reserve(self.name, self.claim, self.nodes)
                self.reserved = True
                self.say("reserved", job=self.claim.number, nodes=list(self.nodes))
            except RunError as error:  # an operator's right is missing: go on without
                self.say("error", job=self.claim.number, said=str(error))
        leaver.signalled_s = now_s
        step = job.beacon.durable_step if job.beacon is not None else None
        said = {"job": leaver.number, "gpus": leaver.gpus, "durable_step": step}
        if slurm.has_steps(leaver.number):
            slurm.signal(leaver.number, self.signal)
            self.say("signalled", **said, signal=self.signal)
        else:  # a signal to the batch script would end it without a save
            leaver.forced = True
            slurm.requeue(leaver.number)
            self.say("signalled", **said, signal="requeue")

    def _have_it_run_again(self, leaver: Leaver, slurm: Slurm, job: QueuedJob | None) -> None:
        if job is None or job.state == "COMPLETED" or job.state == "CANCELLED":
            leaver.over = True
        elif job.waits:
            slurm.start_now(leaver.number)
            self.say("eligible", job=leaver.number)
            leaver.over = True
        elif job.runs:
            leaver.over = True  # again, or still: it was faster than the round
        elif job.state in ("FAILED", "TIMEOUT", "PREEMPTED", "NODE_FAIL"):
            self.say("requeued", job=leaver.number, state=job.state)
            slurm.requeue(leaver.number)  # it left without asking to be run again
            leaver.restarts, leaver.forced = job.restarts, True
