"""How many copies of its state each rank holds in memory, and which rank copies to which.

    room for      tiers
    0 states      none: training waits for each save
    1             durable saves; nothing outlives the trainer
    2             and a snapshot in memory, not while a save is uploaded
    3             and one at any time
    5             and two of another node's rank, where there are several nodes

All ranks do the same: the least room of any rank counts.
"""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST_BUFFERS = 3
COPIES = 2  # of a neighbour: one that is whole, one on its way


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRoom:
    """What a rank tells the others before the first save."""

    size: int  # of its state
    room: int  # states of this size that it may hold
    node: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What all ranks hold; `partner` is the rank whose keeper holds a copy of this one's."""

    buffers: int
    partner: int | None
    size: int
    copy_bytes: int
    host: str

    @property
    def outlives(self) -> bool:
        """Whether snapshots are kept for the next attempt."""
        return self.buffers > 1

    @property
    def held_bytes(self) -> int:
        return self.buffers * self.size + self.copy_bytes


def memory_plan(ranks: Sequence[RankRoom], rank: int, *, outlives: bool = True) -> MemoryPlan:
    """What this rank holds, by what all of them have told."""
    least = min(told.room for told in ranks)
    buffers = max(1, min(MOST_BUFFERS, least)) if outlives else 1
    partner = partner_of(rank, [told.node for told in ranks])
    if not outlives or least < MOST_BUFFERS + COPIES:
        partner = None
    largest = max(told.size for told in ranks)
    senders = _senders(rank, [told.node for told in ranks]) if partner is not None else 0
    return MemoryPlan(
        buffers=buffers,
        partner=partner,
        size=ranks[rank].size,
        copy_bytes=senders * COPIES * largest,
        host=ranks[rank].host,
    )


def partner_of(rank: int, nodes: Sequence[str]) -> int | None:
    """The rank of the next node, in a ring, that holds the copy; None on a node alone."""
    order = list(dict.fromkeys(nodes))
    if len(order) < 2:
        return None
    following = order[(order.index(nodes[rank]) + 1) % len(order)]
    here = [r for r, node in enumerate(nodes) if node == nodes[rank]]
    there = [r for r, node in enumerate(nodes) if node == following]
    return there[here.index(rank) % len(there)]


def _senders(rank: int, nodes: Sequence[str]) -> int:
    """How many ranks send their copies to this one."""
    return sum(partner_of(other, nodes) == rank for other in range(len(nodes)))


def said(plan: MemoryPlan, ranks: Sequence[RankRoom]) -> str | None:
    """One line where memory is too small for a tier that could be; None where it is not."""
    least = min(told.room for told in ranks)
    several = len({told.node for told in ranks}) > 1
    size = max(told.size for told in ranks) / 2**30
    wanted = MOST_BUFFERS + (COPIES if several else 0)
    if least >= wanted:
        return None
    if least < 2:
        lost = "no snapshot in memory outlives its trainer"
    elif least < MOST_BUFFERS:
        lost = "snapshots in memory wait for uploads"
        lost += ", and no other node holds a copy" if several else ""
    else:
        lost = "no other node holds a copy of snapshots"
    return (
        f"a rank has memory for {least} copies of its state of {size:.2f} GiB: {lost} "
        f"(that takes {wanted})"
    )


def here(size: int, bound: int) -> RankRoom:
    """What this rank tells the others."""
    return RankRoom(size=size, room=bound // max(size, 1), node=node(), host=host())


def node() -> str:
    """The same for all processes that see each other's keepers: those of a network namespace."""
    try:
        space = os.stat("/proc/self/ns/net").st_ino
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}-{space}"
    except OSError:
        return socket.gethostname()


def host() -> str:
    """The address at which the other nodes reach this one: where it is on the way to rank 0."""
    master = os.environ.get("MASTER_ADDR") or "127.0.0.1"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((socket.gethostbyname(master), 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def to_note(plan: MemoryPlan) -> dict[str, Any]:
    """The plan as a fact of the record."""
    return {
        "buffers": plan.buffers,
        "neighbour": plan.partner is not None,
        "bytes": plan.held_bytes,
    }
