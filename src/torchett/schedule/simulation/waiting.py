"""Which waiting job comes first: queues by size, each a heap of job numbers."""

from collections.abc import Mapping, Sequence
from heapq import heappop

QUEUED = 0  # the state of a job that waits; an entry of a job in another state is left over


def earliest(
    queues: Mapping[int, list[int]],
    gpus: int,
    state: Sequence[int],
    kept: Mapping[int, int] | None = None,
) -> int:
    """The job that was submitted first, of those that fit so many GPUs; -1 if none does.

    `kept` is how many GPUs have to stay free beside a job of each size.
    """
    best = -1
    for size, heap in queues.items():
        if size + (kept[size] if kept else 0) <= gpus:
            while heap and state[heap[0]] != QUEUED:
                heappop(heap)
            if heap and (best < 0 or heap[0] < best):
                best = heap[0]
    return best
