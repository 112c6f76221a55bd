"""The record of a publish job itself, as events/1: `ett import SPOOL/records/JOB.jsonl NAME`.

Every second of the worker is in an account: x-load, x-export, x-package, … It names the training
job that it belongs to.
"""

import json

from torchett.levers.publish.spool.job import PublishJob
from torchett.levers.publish.spool.publish_job import Published

_FROM_RECORD = 1e-6  # shorter steps are left out


def own_record(job: PublishJob, done: Published, began_s: float, ended_s: float) -> bytes:
    """The lines of the record, from the steps' durations, which lie end to end."""
    events: list[dict[str, object]] = [
        {
            "event": "job",
            "format": "events/1",
            "job": f"publish-{job.id}",
            "ranks": 1,
            "training_job": job.training.get("job"),
            "version": done.version.label,
        },
        {"event": "attempt_start", "attempt": 0, "t": began_s, "ranks": 1},
    ]
    steps = {name: took for name, took in done.timings.items() if name != "all"}
    at = max(began_s, ended_s - sum(steps.values()))
    for name, took in steps.items():
        until = min(at + took, ended_s)
        if until - at > _FROM_RECORD:
            span = {"event": "span", "attempt": 0, "rank": 0, "account": f"x-{name}"}
            events.append({**span, "t0": at, "t1": until})
        at = until
    events.append({"event": "attempt_end", "attempt": 0, "t": ended_s, "outcome": "success"})
    return "".join(json.dumps(event) + "\n" for event in events).encode()
