"""Small clusters for tests."""

from collections.abc import Sequence

import numpy as np

from torchett.schedule import Workload

Job = tuple[float, int, int, float]  # submit, VC, GPUs, run time


def world(
    jobs: Sequence[Job],
    quotas: Sequence[int],
    *,
    checkpoint_s: float = 100.0,
    save_s: float = 10.0,
    restart_s: float = 20.0,
    on_signal: Sequence[bool] | None = None,
    failures_per_s: float = 0.0,
    seed: int = 0,
) -> Workload:
    """A workload of a few jobs, in the order of submission."""
    count = len(jobs)
    assert [job[0] for job in jobs] == sorted(job[0] for job in jobs)
    return Workload(
        name="small",
        gpus=sum(quotas),
        quotas=np.array(quotas, dtype=np.int64),
        vcs=tuple(f"vc{number}" for number in range(len(quotas))),
        submit_s=np.array([job[0] for job in jobs], dtype=np.float64),
        vc=np.array([job[1] for job in jobs], dtype=np.int64),
        job_gpus=np.array([job[2] for job in jobs], dtype=np.int64),
        run_s=np.array([job[3] for job in jobs], dtype=np.float64),
        checkpoint_s=np.full(count, checkpoint_s),
        save_s=np.full(count, save_s),
        restart_s=np.full(count, restart_s),
        saves_on_signal=np.array(on_signal or [False] * count),
        failures_per_s=np.full(count, failures_per_s),
        seed=seed,
    )
