"""Which rank failed first, and which ranks failed only as a consequence.

    rank 0   ──── all_reduce ───────── RuntimeError: … Connection reset by peer
    rank 1   ──── ✗ SIGKILL                            the cause, though it may be seen second

An agent polls its ranks, and one poll may find several ends, in order of ranks. The kind of an end
therefore counts for more than its time. From the likeliest cause to the least likely:

1. a kill by the system
2. an error of the rank itself
3. an end without an explanation
4. an error about a peer that is gone
5. SIGTERM, with which an agent stops the other ranks
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_OF_A_PEER = re.compile(
    r"(Dist\w*Error|Connection\w*Error|BrokenPipeError)\b"
    r"|.*\b(by peer|gloo|NCCL error|ncclRemoteError|[Ss]ocket|remote worker)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank ended: a signal's name, `hang`, `exit_N`, or the exception that it raised."""

    rank: int
    cause: str
    t_ns: int
    raised: bool = False  # `cause` is an exception: "ValueError: bad loss"


def first_failure(ends: Iterable[RankEnd]) -> RankEnd | None:
    """The end that caused the others; None without any end.

    If a rank raised and then exited with 1, the exception and its time are used.
    """
    known: dict[int, RankEnd] = {}
    for end in ends:
        other = known.get(end.rank)
        if other is None or _is_more_precise(end, other):
            known[end.rank] = end
    return min(known.values(), key=lambda end: (_weight(end), end.t_ns, end.rank), default=None)


def _is_more_precise(end: RankEnd, other: RankEnd) -> bool:
    if end.raised != other.raised:
        return other.cause.startswith("exit_") if end.raised else not end.cause.startswith("exit_")
    # A script may run several programs: the last one that raised ended it.
    return end.t_ns > other.t_ns if end.raised else end.t_ns < other.t_ns


def _weight(end: RankEnd) -> int:
    if end.raised:
        return 3 if _OF_A_PEER.match(end.cause) else 1
    if end.cause.startswith("exit_") or end.cause == "SIGABRT":  # NCCL's watchdog, for a lost peer
        return 2
    return 4 if end.cause == "SIGTERM" else 0
