"""The jobs of a spool as Ray tasks: the same claims, the same steps, the same versions."""

from torchett.levers.publish.errors import PublishError
from torchett.levers.publish.spool.spool import Spool
from torchett.levers.publish.spool.worker import Habits, Tally, try_job


def work_with_ray(
    url: str, habits: Habits, *, at_once: int, lease_s: float
) -> tuple[Tally, list[str]]:
    """Publish every open job by tasks of one core each; what they did, and what they said.

    Joins the cluster of RAY_ADDRESS, or starts one here.
    """
    try:
        import ray
    except ImportError:
        raise PublishError("--engine ray needs ray: pip install 'torchett[ray]'") from None
    started = not ray.is_initialized()
    if started:
        ray.init(num_cpus=at_once, include_dashboard=False, log_to_driver=False)

    @ray.remote(num_cpus=1)  # type: ignore[untyped-decorator,unused-ignore]
    def one(job_id: str) -> tuple[int, int, int, list[str]]:
        tally, said = Tally(), list[str]()
        try_job(Spool(url, lease_s=lease_s), job_id, habits, tally, said.append)
        return tally.published, tally.failed, tally.lost, said

    whole, lines = Tally(), list[str]()
    try:
        for _ in range(habits.tries):
            waiting = Spool(url).open_jobs()
            if not waiting:
                break
            for published, failed, lost, said in ray.get([one.remote(job) for job in waiting]):
                whole.published += published
                whole.failed += failed
                whole.lost += lost
                lines += said
    finally:
        if started:
            ray.shutdown()
    return whole, lines
