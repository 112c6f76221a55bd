"""A worker: takes jobs of a spool, one after the other, and publishes them.

At least once, yet one version each: a job is free again when its worker dies, and the registry has
one version a key. A job that fails is tried again a few times, then parked with its reason.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchett.levers.publish.errors import LostClaim, one_line
from torchett.levers.publish.registry.registry import Registry
from torchett.levers.publish.spool.claims import Claim
from torchett.levers.publish.spool.job import PublishJob
from torchett.levers.publish.spool.own_record import own_record
from torchett.levers.publish.spool.publish_job import Published, publish_job
from torchett.levers.publish.spool.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How a worker goes about its jobs."""

    tries: int = 3
    deaths: int = 10  # workers that may die on a job before it is parked
    poll_s: float = 2.0
    scratch: Path | None = None
    mlflow: str | None = None  # address of an MLflow server that gets every version, too


@dataclass(slots=True)
class Tally:
    """What a worker did."""

    published: int = 0
    failed: int = 0
    lost: int = 0


def work(
    spool: Spool,
    habits: Habits,
    *,
    drain: bool,
    say: Callable[[str], None],
) -> Tally:
    """Publish jobs until there are none left (`drain`), or for ever."""
    tally = Tally()
    while True:
        waiting = spool.open_jobs()
        took = sum(try_job(spool, job_id, habits, tally, say) for job_id in waiting)
        if drain and not spool.open_jobs():
            return tally
        if not took:
            time.sleep(habits.poll_s)


def try_job(
    spool: Spool, job_id: str, habits: Habits, tally: Tally, say: Callable[[str], None]
) -> bool:
    """Whether the job could be had; then it was published, or its failure is noted."""
    try:
        claim = spool.take(job_id)
    except OSError as error:
        say(f"{job_id}: cannot be claimed: {one_line(error)}")
        return False
    if claim is None:
        return False
    if spool.deaths(job_id) > habits.deaths:
        spool.park(
            job_id,
            f"{habits.deaths} workers ended while they had it, without a word (out of memory, "
            "killed?): give workers more memory, then `ett publish retry`",
        )
        say(f"{job_id}: parked: {habits.deaths} workers died of it")
        return True
    with claim.beating():
        _publish(spool, job_id, claim, habits, tally, say)
    return True


def _publish(
    spool: Spool,
    job_id: str,
    claim: Claim,
    habits: Habits,
    tally: Tally,
    say: Callable[[str], None],
) -> None:
    began_s = time.time()
    try:
        job = spool.job(job_id)
        done = publish_job(job, scratch=habits.scratch, still_ours=claim.still_ours)
        pushed = _push(job, done, habits.mlflow) if habits.mlflow else {}
    except LostClaim as lost:
        tally.lost += 1
        say(str(lost))
        return
    except Exception as error:
        tally.failed += 1
        _note_failure(spool, job_id, one_line(error), habits, say)
        return
    tally.published += 1
    ended_s = time.time()
    told = {**_told(done, began_s, ended_s), **pushed}
    spool.store.write(f"records/{job_id}.jsonl", own_record(job, done, began_s, ended_s))
    spool.finish(job_id, told)
    said = "was published already as" if done.was_there else "published as"
    alias = f", {job.alias} now" if done.flipped else ""
    say(f"{job_id}: {said} {done.version.label}{alias}, {ended_s - began_s:.1f} s")


def _push(job: PublishJob, done: Published, uri: str) -> dict[str, object]:
    """What MLflow calls the version."""
    from torchett.levers.publish.registry.mlflow_target import push

    found = push(Registry(job.registry), done.version, uri)
    return {"mlflow": {"uri": uri, "name": found.name, "version": found.version}}


def _told(done: Published, began_s: float, ended_s: float) -> dict[str, object]:
    return {
        "version": done.version.label,
        "flipped": done.flipped,
        "was_there": done.was_there,
        "began_s": began_s,
        "ended_s": ended_s,
        "device": "CPU",
        "timings": done.timings,
    }


def _note_failure(
    spool: Spool, job_id: str, reason: str, habits: Habits, say: Callable[[str], None]
) -> None:
    try:
        failures = spool.fail(job_id, reason, tries=habits.tries)
    except OSError as error:
        say(f"{job_id}: {reason} (and the spool cannot be written: {one_line(error)})")
        return
    left = habits.tries - failures
    then = f"tried again, {left} left" if left > 0 else "parked: mend it, then `ett publish retry`"
    say(f"{job_id}: {reason}; {then}")
