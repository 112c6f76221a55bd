"""A made-up trace: bursts of jobs from VCs that are busy by turns, as large as wanted."""

import numpy as np

from torchett.schedule.simulation.workload import Trace

_DAY_S = 86400.0
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_USUAL_GPUS = 250  # that such a trace keeps busy, unless `days` says otherwise
_SHARES = (0.70, 0.08, 0.08, 0.09, 0.03, 0.015, 0.005)  # near to Philly's and Helios's


def synthetic(
    jobs: int, *, days: float | None = None, vcs: int = 12, nodes_of: int = 1, seed: int = 0
) -> Trace:
    """Jobs whose sizes and run times are spread as in published traces.

    Each VC has its own busy hours and submits in bursts, so that quotas stand idle at one VC
    while another has more jobs than its quota holds: what lending is for. With `nodes_of` every
    job is so many times as large: for clusters that are given out by the node.
    """
    rng = np.random.default_rng((7, seed))
    owners = rng.choice(vcs, size=jobs, p=rng.dirichlet(np.full(vcs, 4.0)))
    run_s = np.round(np.clip(np.exp(rng.normal(6.9, 1.8, jobs)), 30.0, 7 * _DAY_S))
    gpus = np.array(_SIZES)[rng.choice(len(_SIZES), size=jobs, p=np.array(_SHARES))] * nodes_of
    if days is None:
        days = max(1.0, float(gpus @ run_s) / _USUAL_GPUS / _DAY_S)
    bursts = max(1, jobs // 8)
    burst_vc = rng.integers(0, vcs, bursts)
    hour = rng.normal(10.0, 4.0, vcs)[burst_vc] + rng.normal(0.0, 3.0, bursts)
    burst_s = (rng.integers(0, max(1, round(days)), bursts) + hour / 24.0) * _DAY_S
    of_vc = [np.flatnonzero(burst_vc == vc) for vc in range(vcs)]
    submit_s = np.empty(jobs)
    for vc in range(vcs):
        mine = np.flatnonzero(owners == vc)
        if len(of_vc[vc]):
            submit_s[mine] = burst_s[rng.choice(of_vc[vc], size=len(mine))]
        else:
            submit_s[mine] = rng.uniform(0.0, days * _DAY_S, len(mine))
    submit_s = np.round(submit_s + rng.exponential(120.0, jobs))
    order = np.argsort(submit_s, kind="stable")
    submit_s = submit_s[order]
    return Trace(
        name=f"synthetic, {jobs} jobs",
        submit_s=submit_s - submit_s[0],
        vc=owners[order].astype(np.int64),
        gpus=gpus[order].astype(np.int64),
        run_s=run_s[order],
        vcs=tuple(f"vc-{number:02}" for number in range(vcs)),
    )
