"""A job's beacon as objects to merge into a job's own: for Kueue and for Volcano.

Nothing here talks to an API server.
"""

import math
from datetime import UTC, datetime
from typing import Any

from torchett.model.beacon import Beacon


def kueue_boost(beacon: Beacon, now_s: float, *, step_gpu_s: float = 60.0, most: int = 100) -> int:
    """A boost of priority that grows with what a preemption costs now, for each GPU freed.

    Kueue preempts low priority first, so a job that has just saved should have a low boost. It is
    the cost for each GPU in steps of a minute, `most` at most; it stays within the priority class
    if classes are more than `most` apart.
    """
    return min(most, math.floor(beacon.cost_gpu_s(now_s) / beacon.gpus / step_gpu_s))


def kueue_annotation(beacon: Beacon, now_s: float) -> dict[str, Any]:
    """To merge into a Workload: the boost as an annotation (KEP-7990, alpha)."""
    boost = str(kueue_boost(beacon, now_s))
    return {"metadata": {"annotations": {"kueue.x-k8s.io/priority-boost": boost}}}


def kueue_spec(beacon: Beacon, now_s: float) -> dict[str, Any]:
    """To merge into a Workload: the boost as a field (KEP-13414)."""
    return {"spec": {"priorityBoost": kueue_boost(beacon, now_s)}}


def volcano_annotation(beacon: Beacon) -> dict[str, Any]:
    """To merge into a job: when its last checkpoint became safe; none: no annotation."""
    if beacon.durable_step < 0:
        return {"metadata": {"annotations": {}}}
    moment = datetime.fromtimestamp(math.floor(beacon.durable_s), tz=UTC)
    time = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"metadata": {"annotations": {"volcano.sh/last-checkpoint-time": time}}}
