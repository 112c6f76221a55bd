"""What a preemption policy reads and returns.

A cluster is shared by virtual clusters (VCs). Each VC owns a quota of GPUs. A job runs *within
quota* while the jobs of its VC that run so fit the quota; else it runs on *borrowed* GPUs. A VC
that has room in its quota and finds no free GPUs makes a `Demand`: borrowed GPUs must come back.

    Demand + State ──► policy.decide ──► Decision: which jobs to evict, and when

The simulator fills these values from its events. A daemon beside a real scheduler fills them
from the scheduler's job list and from what the jobs say about their checkpoints.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Jobs that run on borrowed GPUs, one column per fact, one row per job.

              save begins   save is durable                 save is durable
    ──────────────┼───────────────┼──────────── now ──────────────┼────►
              durable_s                                          due_s
                  └─────────── lost if killed now ┘
    """

    job: Ints  # the scheduler's number
    gpus: Ints
    started_s: Floats  # when this attempt got its GPUs
    durable_s: Floats  # work up to this time is safe; no earlier than the attempt's first work
    due_s: Floats  # when the next regular save will be durable; inf: unknown
    save_s: Floats  # from the begin of a save until it is durable
    saves_on_signal: Bools  # the job saves and exits when it is signalled
    restart_s: Floats  # from new GPUs until training goes on
    preemptions: Ints  # how often the job was preempted before

    def __len__(self) -> int:
        return len(self.job)

    def lost_s(self, now_s: float) -> Floats:
        """Seconds of work that a kill at `now_s` throws away."""
        return np.maximum(now_s - self.durable_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """GPUs that VCs within their quota are owed and that are neither free nor on their way."""

    gpus: int  # how many have to be freed
    waiting_gpus: int  # of all jobs that wait for them: a gang waits as a whole
    since_s: float  # when the first of these jobs began to wait


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The cluster as a policy sees it."""

    now_s: float
    candidates: Candidates
    grace_s: float  # from the signal until the scheduler kills a job
    used_gpu_s: float = 0.0  # GPU-seconds that jobs held so far
    quota_wait_gpu_s: float = 0.0  # GPU-seconds that jobs within quota waited so far
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A job to preempt, and when to signal it."""

    job: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do about a demand: evict these jobs, or ask again at a time."""

    evictions: tuple[Eviction, ...] = ()
    ask_again_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """How much quota demand is expected: what sizes the lending reserve."""

    gpus: int  # of the whole cluster
    claims_gpus: float  # GPUs that VCs claim within their quota in one horizon, mean
    spread_gpus: float  # its standard deviation
