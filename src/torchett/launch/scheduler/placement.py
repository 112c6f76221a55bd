"""What the scheduler says about a launch: when it was submitted, when allocated, and where.

            asked for ┄┄┄┄┄┄┄┄ queue ┄┄┄┄┄┄┄┄ given ── the launcher starts
Slurm       EligibleTime (≥ SubmitTime)       StartTime
Kubernetes  the pod's creation                PodScheduled

The environment is read first (ETT_* before Slurm's and Kubernetes'); what it leaves open is asked
for, within a second. An answer that does not come is a note, not an error.
"""

import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torchett.launch.scheduler.kubernetes import pod_times
from torchett.launch.scheduler.slurm import job_times
from torchett.record.identity import slurm_step

ASK_S = 1.0
Answer = tuple[dict[str, object], str | None]  # what the scheduler said; why it said nothing
Ask = Callable[[Mapping[str, str], float], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Times are seconds since the epoch; None if unknown."""

    submitted_s: float | None = None
    allocated_s: float | None = None
    node: int = 0
    nodes: int = 1
    head: str | None = None
    said: Mapping[str, object] | None = None  # what the scheduler said, as it said it
    note: str | None = None


def placement(env: Mapping[str, str]) -> Placement:
    """The placement from the environment alone."""
    # Started by srun: else Slurm's numbers are the allocation's, of which this may be one of many.
    by_srun = slurm_step(env) is not None
    numbers = ("SLURM_NODEID",) if by_srun else ()
    counts = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES") if by_srun else ()
    head = env.get("ETT_HEAD") or (env.get("SLURM_LAUNCH_NODE_IPADDR") if by_srun else None)
    node = _first(env, "ETT_NODE", *numbers, "PET_NODE_RANK", "JOB_COMPLETION_INDEX")
    nodes = _first(env, "ETT_NODES", *counts, "PET_NNODES")
    return Placement(
        submitted_s=_number(env.get("ETT_SUBMITTED")),
        allocated_s=_number(env.get("ETT_ALLOCATED") or env.get("SLURM_JOB_START_TIME")),
        node=int(_number(node) or 0),
        nodes=int(_number(nodes) or 1),
        head=head or None,
    )


def asked(place: Placement, env: Mapping[str, str], born_s: float) -> Placement:
    """The placement of a launcher born then, with the scheduler's answers where env is silent.

    Only node 0 asks: its log describes the attempts, and requests of a thousand nodes at once
    would overload the controller.
    """
    if place.node or (place.submitted_s is not None and place.allocated_s is not None):
        return in_order(place, born_s)
    ask: Ask | None = None
    if "SLURM_JOB_ID" in env:
        ask = job_times
    elif "ETT_POD" in env or "KUBERNETES_SERVICE_HOST" in env:
        ask = pod_times
    if ask is None:
        return in_order(place, born_s)
    said, note = _within(ASK_S, ask, env)
    submitted, allocated = _known(said, "submitted_s"), _known(said, "allocated_s")
    place = replace(
        place,
        submitted_s=place.submitted_s if place.submitted_s is not None else submitted,
        allocated_s=place.allocated_s if place.allocated_s is not None else allocated,
        said=said or None,
        note=note,
    )
    return in_order(place, born_s)


def _within(seconds: float, ask: Ask, env: Mapping[str, str]) -> Answer:
    """The answer, if it comes in time; the waiting thread blocks signals."""
    answers: list[Answer] = []

    def wait() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        answers.append(ask(env, seconds))

    thread = threading.Thread(target=wait, name="ett-asks", daemon=True)
    thread.start()
    thread.join(seconds)
    late = f"the scheduler's times are not known: no answer within {seconds:g} s"
    return answers[0] if answers else ({}, late)


def in_order(place: Placement, born_s: float) -> Placement:
    """Asked for ≤ given ≤ born: schedulers count whole seconds and have clocks of their own."""
    allocated = None if place.allocated_s is None else min(place.allocated_s, born_s)
    submitted = place.submitted_s
    if submitted is not None:
        submitted = min(submitted, born_s if allocated is None else allocated)
    return replace(place, allocated_s=allocated, submitted_s=submitted)


def _known(said: Mapping[str, object], key: str) -> float | None:
    value = said.get(key)
    return value if isinstance(value, float) else None


def _first(env: Mapping[str, str], *keys: str) -> str | None:
    return next((env[key] for key in keys if env.get(key)), None)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
