"""Jobs to schedule, as columns: what was submitted, and what a seed draws for each job."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchett.model.errors import InputError
from torchett.schedule.values import Bools, Floats, Ints

# Slurm begins a requeued job when its credentials have run out (AuthInfo cred_expire), plus 1 s.
SLURM_HOLD_S = 121.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Jobs in the order of their submission."""

    name: str
    submit_s: Floats  # from 0
    vc: Ints  # index into `vcs`
    gpus: Ints
    run_s: Floats  # how long the job runs when nothing disturbs it
    vcs: tuple[str, ...]
    weights: Mapping[str, float] = field(default_factory=dict)  # sizes of the VCs, if known

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def gpu_s(self) -> float:
        return float(self.gpus @ self.run_s)

    @property
    def span_s(self) -> float:
        return float(self.submit_s[-1] - self.submit_s[0]) if len(self) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRates:
    """How often jobs fail, by size: failures per second of running."""

    up_to_gpus: tuple[int, ...]  # ascending; the last class takes everything above, too
    per_s: tuple[float, ...]

    def of(self, gpus: Ints) -> Floats:
        found = np.searchsorted(self.up_to_gpus, gpus)
        return np.asarray(self.per_s)[np.minimum(found, len(self.per_s) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How the jobs of a cluster save and restart."""

    checkpoint_s: float = 1800.0  # training between two saves
    save_s: float = 33.0  # median time from the begin of a save until it is durable
    save_spread: float = 0.5  # of its logarithm, between jobs
    restart_s: float = 202.0  # from new GPUs until training goes on
    on_signal: float = 0.0  # share of jobs that save when they are signalled


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the scheduler treats a job that it preempts; the same for every policy."""

    grace_s: float = 30.0  # Kueue's default: a pod's terminationGracePeriodSeconds
    exit_s: float = 5.0  # from the signal, or the save on it, until the GPUs are free
    hold_s: float = 0.0  # from then until the job may start again; Slurm: SLURM_HOLD_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything the simulator needs to know about the jobs and their cluster."""

    name: str
    gpus: int  # of the cluster
    quotas: Ints  # of each VC; they sum to `gpus` or less
    vcs: tuple[str, ...]
    submit_s: Floats
    vc: Ints
    job_gpus: Ints
    run_s: Floats
    checkpoint_s: Floats
    save_s: Floats
    restart_s: Floats
    saves_on_signal: Bools
    failures_per_s: Floats
    seed: int = 0

    def __len__(self) -> int:
        return len(self.job_gpus)


def workload(
    trace: Trace,
    *,
    load: float,
    gpus: int | None = None,
    seed: int = 0,
    habits: Habits | None = None,
    failures: FailureRates | None = None,
) -> Workload:
    """The trace on a cluster that it loads so much.

    Without `gpus` the cluster gets as many as make the load, and arrivals stay as recorded. With
    `gpus` the arrivals are stretched or squeezed. Seed 0 plays the arrivals as recorded; others
    shift each VC's arrivals by up to twelve hours either way, so that bursts meet differently.
    """
    habits = habits or Habits()
    if not len(trace) or trace.span_s <= 0:
        raise InputError(f"{trace.name}: expected jobs at two times or more, found {len(trace)}")
    natural = trace.gpu_s / trace.span_s
    size = max(1, round(natural / load)) if gpus is None else gpus
    largest = int(trace.gpus.max())
    if largest > size:
        raise InputError(
            f"{trace.name}: a job asks for {largest} GPUs, the cluster has {size}:"
            " expected a lower --load, more --gpus or --most-gpus N to leave large jobs out"
        )
    rng = np.random.default_rng(seed)
    stretch = 1.0 if gpus is None else natural / (load * size)
    submit_s = trace.submit_s * stretch
    if seed:
        shifts = rng.uniform(-43200.0, 43200.0, len(trace.vcs)).round()
        submit_s = submit_s + shifts[trace.vc]
        submit_s = submit_s - submit_s.min()
    order = np.argsort(submit_s, kind="stable")
    count, job_gpus = len(trace), trace.gpus[order]
    saves = habits.save_s * np.exp(habits.save_spread * rng.standard_normal(count))
    return Workload(
        name=trace.name,
        gpus=size,
        quotas=quotas(size, _weights(trace)),
        vcs=trace.vcs,
        submit_s=submit_s[order],
        vc=trace.vc[order],
        job_gpus=job_gpus,
        run_s=trace.run_s[order],
        checkpoint_s=np.full(count, habits.checkpoint_s),
        save_s=np.minimum(saves, habits.checkpoint_s)[order],
        restart_s=np.full(count, habits.restart_s),
        saves_on_signal=(rng.random(count) < habits.on_signal)[order],
        failures_per_s=np.zeros(count) if failures is None else failures.of(job_gpus),
        seed=seed,
    )


def _weights(trace: Trace) -> list[float]:
    """The known sizes of the VCs; else what their jobs use."""
    if trace.weights:
        return [trace.weights.get(vc, 0.0) for vc in trace.vcs]
    used = np.bincount(trace.vc, trace.gpus * trace.run_s, len(trace.vcs))
    return [float(value) for value in used]


def quotas(gpus: int, weights: Sequence[float]) -> Ints:
    """Whole GPUs in proportion to the weights; they sum to `gpus`."""
    total = math.fsum(weights)
    exact = [gpus * weight / total for weight in weights]
    given = [math.floor(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: (given[i] - exact[i], i))
    for i in by_rest[: gpus - sum(given)]:
        given[i] += 1
    return np.array(given, dtype=np.int64)
