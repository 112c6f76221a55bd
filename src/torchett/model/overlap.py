"""Which interval gets an instant that several intervals cover."""

import heapq
from collections.abc import Iterable, Sequence

Interval = tuple[int, int, int, int]  # begin, end (both clipped), then begin and end as recorded


def latest_wins(intervals: Sequence[Interval]) -> Iterable[tuple[int, int, int]]:
    """Disjoint pieces (begin, end, position of the interval) in order of time. The last begun wins.

        outer  ├──────────────────────┤
        inner       ├──────┤
        late            ├───────┤
        owner  ooooo iiii lllllll ooooo

    Ties: the interval that ends first; then the later in the sequence. Recorded times decide.
    """
    heap: list[tuple[int, int, int]] = []  # (−recorded begin, recorded end, −position)
    clock = 0

    def drain(until: int | None) -> Iterable[tuple[int, int, int]]:
        nonlocal clock
        while heap:
            which = -heap[0][2]
            end = intervals[which][1]
            if end <= clock:
                heapq.heappop(heap)
                continue
            stop = end if until is None else min(end, until)
            if stop > clock:
                yield clock, stop, which
                clock = stop
            if until is not None and clock >= until:
                return

    for which in sorted(range(len(intervals)), key=lambda i: intervals[i][0]):
        begin, end, t0, t1 = intervals[which]
        if end <= begin:
            continue
        yield from drain(begin)
        clock = max(clock, begin) if heap else begin
        heapq.heappush(heap, (-t0, t1, -which))
    yield from drain(None)
