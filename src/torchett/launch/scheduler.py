"""What the scheduler's environment says of a launch: when it was asked for, given, and where."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Times are seconds since the epoch; None where nobody said."""

    submitted_s: float | None = None
    allocated_s: float | None = None
    node: int = 0
    nodes: int = 1
    head: str | None = None


def placement(env: Mapping[str, str]) -> Placement:
    """ETT_* variables first, then Slurm's."""
    head = env.get("ETT_HEAD") or env.get("SLURM_LAUNCH_NODE_IPADDR")
    return Placement(
        submitted_s=_number(env.get("ETT_SUBMITTED")),
        allocated_s=_number(env.get("ETT_ALLOCATED") or env.get("SLURM_JOB_START_TIME")),
        node=int(_number(env.get("ETT_NODE") or env.get("SLURM_NODEID")) or 0),
        nodes=int(_number(env.get("ETT_NODES") or env.get("SLURM_NNODES")) or 1),
        head=head or None,
    )


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
