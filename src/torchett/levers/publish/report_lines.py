"""What became of a training job's model, in one line for the job's report.

published 41 s after release, on CPU, as dlrm@7
not published yet: dlrm waits in /mnt/spool, 2 tries failed: OSError: no space left
published in the trainer as dlrm@7, which held the devices for 63 s
"""

from collections.abc import Iterable
from typing import Any

from torchett.levers.publish.errors import PublishError, one_line
from torchett.levers.publish.spool.spool import Spool


def publish_lines(facts: Iterable[tuple[int, int, Any]], released_s: float | None) -> list[str]:
    """A line a publish job, from facts of kind `publish`; `released_s`: the devices' (epoch)."""
    lines = []
    for _, _, fact in facts:
        if not isinstance(fact, dict):
            continue
        if "version" in fact:
            took = float(fact.get("timings", {}).get("all", 0.0))
            lines.append(
                f"published in the trainer as {fact['version']}, which held the devices for "
                f"{took:.0f} s"
            )
        elif "spool" in fact and "id" in fact:
            lines.append(_of_spool(str(fact["spool"]), str(fact["id"]), released_s))
    return lines


def _of_spool(url: str, job_id: str, released_s: float | None) -> str:
    try:
        standing = Spool(url).standing(job_id)
    except (OSError, PublishError) as error:
        return f"whether {job_id} is published is not known: {one_line(error)}"
    result = standing.told
    if standing.state == "done":
        ended_s, device = float(result.get("ended_s", 0.0)), result.get("device", "CPU")
        after = "" if released_s is None else f" {ended_s - released_s:.0f} s after release,"
        return f"published{after} on {device}, as {result.get('version')}"
    if standing.state == "parked":
        return (
            f"not published: {job_id} is parked in {url}: {result.get('reason')};"
            " correct the cause, then "
            f"ett publish retry {url} {job_id}"
        )
    tries = (
        f", {standing.failures} tries failed: {result.get('reason')}" if standing.failures else ""
    )
    doing = "a worker has it" if standing.state == "claimed" else f"it waits in {url}"
    return f"not published yet: {job_id}: {doing}{tries}"
