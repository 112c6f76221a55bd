"""The ledger of a job whose replica groups fail and come back one by one: the sum of theirs.

group 0   ████████████████████████████████████     its own attempts, its own survival
group 1   ██████████ ✗ ▒▒▒ ███████████████████     one attempt more
job       the rank-seconds of both; from the first start to the last end
"""

from collections.abc import Sequence
from itertools import chain

from torchett.ledger.ledger import Ledger
from torchett.ledger.rules.window import Window
from torchett.model.accounts import GROUPS


def summed(job: str, groups: Sequence[Ledger]) -> Ledger:
    """The job's ledger; `groups` are on one clock, and at least one."""
    frames = [group.window for group in groups]
    start_ns = min(frame.start_ns for frame in frames)
    tenures = sorted(
        chain.from_iterable(frame.tenures for frame in frames),
        key=lambda tenure: (tenure.state == "live", tenure.lo_ns),  # one that runs is the last
    )
    starts = [
        group.window.start_ns + group.time_to_start_ns - start_ns
        for group in groups
        if group.time_to_start_ns is not None
    ]
    reached = [group.last_step for group in groups if group.last_step is not None]
    return Ledger(
        job=job,
        ranks=sum(group.ranks for group in groups),
        window=Window(
            start_ns=start_ns,
            end_ns=max(frame.end_ns for frame in frames),
            queue_ns=max(frame.queue_ns for frame in frames),
            requeue_ns=sum(frame.requeue_ns for frame in frames),
            tenures=tuple(tenures),
        ),
        tree=_tree(groups),
        attempts=[attempt for group in groups for attempt in group.attempts],
        losses=tuple(loss for group in groups for loss in group.losses),
        time_to_start_ns=min(starts, default=None),
        time_to_recover_ns=tuple(ns for group in groups for ns in group.time_to_recover_ns),
        at_risk_ns=sum(group.at_risk_ns for group in groups),
        estimated_ns=sum(group.estimated_ns for group in groups),
        last_step=max(reached, default=None),
        last_durable_step=max(group.last_durable_step for group in groups),
    )


def _tree(groups: Sequence[Ledger]) -> dict[str, dict[str, int]]:
    tree: dict[str, dict[str, int]] = {group: {} for group in GROUPS}
    for ledger in groups:
        for group, accounts in ledger.tree.items():
            for name, ns in accounts.items():
                tree[group][name] = tree[group].get(name, 0) + ns
    return tree
