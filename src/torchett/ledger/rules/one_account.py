"""Rule 2: one account per instant and rank.

A *lane* is one rank in one attempt. Lanes are laid end to end on one axis, so that a whole job
is swept by a few sorts and prefix sums however many ranks and attempts it has:

    rank 0, attempt 0        rank 1, attempt 0        rank 0, attempt 1
    ├────────────────────────┼────────────────────────┼──────────────────────── …   axis
      ▒▒▒▒ spans  ███ steps    ▒▒▒▒   ███  ███           ▒▒   ███

Inside a lane, by the first that fits:

    lo        start        first step          last step        hi
    ├──────────┼───────────────┼───────────────────┼─────────────┤
    spans ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒   wherever there is one
    restart_gap                ████ steps ████ ████                effective or unsaved (rule 3)
    or hardware_setup unattributed   other_in_loop   teardown, detect or other_in_loop
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from torchett.ledger.disjoint import disjoint
from torchett.ledger.rows import Bools, Ints, Rows

NEVER = np.iinfo(np.int64).max
_AXIS = 1 << 62  # the longest axis that 64 bits hold with room to add
_GROUP_ROWS = 1 << 17  # rows swept at a time: bounds the memory, not the result


@dataclass(slots=True, kw_only=True)
class Lanes:
    """The lanes to sweep, one entry each: what to look at, and what is known from before.

    `from_ns` is where this look begins (the attempt's lo, or the time up to which an earlier
    look has settled everything); `begun` says whether that earlier part held a step.
    """

    lo_ns: Ints
    start_ns: Ints
    hi_ns: Ints
    from_ns: Ints
    begun: Bools

    def __len__(self) -> int:
        return len(self.lo_ns)

    def take(self, which: slice) -> "Lanes":
        return Lanes(**{f.name: getattr(self, f.name)[which] for f in fields(self)})

    @staticmethod
    def joined(parts: Sequence["Lanes"]) -> "Lanes":
        names = [f.name for f in fields(Lanes)]
        return Lanes(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in names})


@dataclass(slots=True, kw_only=True)
class LaneTotals:
    """What a look found, one entry a lane.

    spans_before / spans_after   span time by account, before / from the rank's first step on
    cover_gap                    … of it before the attempt's start
    cover_start                  … of it between start and first step
    cover_loop                   … of it from the first step on
    cover_tail                   … of it after the last step
    """

    seen: Bools  # the rank has a row
    spans_before: Ints
    spans_after: Ints
    cover_gap: Ints
    cover_start: Ints
    cover_loop: Ints
    cover_tail: Ints
    steps_ns: Ints
    first_index: Ints
    first_begin: Ints  # NEVER: no step; the times of first and last step are as recorded
    first_end: Ints
    first_booked: Ints  # the time inside the first step that steps keep
    last_end: Ints  # −NEVER: no step

    @staticmethod
    def nothing(lanes: int, accounts: int) -> "LaneTotals":
        def filled(value: int = 0) -> Ints:
            return np.full(lanes, value, dtype=np.int64)

        return LaneTotals(
            seen=np.zeros(lanes, dtype=np.bool_),
            spans_before=np.zeros((lanes, accounts), dtype=np.int64),
            spans_after=np.zeros((lanes, accounts), dtype=np.int64),
            cover_gap=filled(),
            cover_start=filled(),
            cover_loop=filled(),
            cover_tail=filled(),
            steps_ns=filled(),
            first_index=filled(),
            first_begin=filled(NEVER),
            first_end=filled(NEVER),
            first_booked=filled(),
            last_end=filled(-NEVER),
        )

    @property
    def begun(self) -> Bools:
        return np.asarray(self.first_begin != NEVER)

    def take(self, which: slice) -> "LaneTotals":
        return LaneTotals(**{f.name: getattr(self, f.name)[which] for f in fields(self)})

    def then(self, later: "LaneTotals") -> "LaneTotals":
        """This look and the one that began where it left off, as one."""
        mine, stepped = self.begun, later.begun
        missing = later.spans_before.shape[1] - self.spans_before.shape[1]

        def widened(table: Ints) -> Ints:
            return np.pad(table, ((0, 0), (0, missing))) if missing else table

        return LaneTotals(
            seen=self.seen | later.seen,
            spans_before=widened(self.spans_before) + later.spans_before,
            spans_after=widened(self.spans_after) + later.spans_after,
            cover_gap=self.cover_gap + later.cover_gap,
            cover_start=self.cover_start + later.cover_start,
            cover_loop=self.cover_loop + later.cover_loop,
            cover_tail=np.where(stepped, later.cover_tail, self.cover_tail + later.cover_tail),
            steps_ns=self.steps_ns + later.steps_ns,
            first_index=np.where(mine, self.first_index, later.first_index),
            first_begin=np.where(mine, self.first_begin, later.first_begin),
            first_end=np.where(mine, self.first_end, later.first_end),
            first_booked=np.where(mine, self.first_booked, later.first_booked),
            last_end=np.maximum(self.last_end, later.last_end),
        )


@dataclass(slots=True, kw_only=True)
class SweepResult:
    """What a look found, and per row: whether it is a step that counts, and what it keeps."""

    found: LaneTotals
    inside: Bools
    net_ns: Ints


def sweep(rows: Rows, lane: Ints, lanes: Lanes, accounts: int) -> SweepResult:
    """Every row's and every lane's time by rule 2; `lane` says in which lane each row lies."""
    out = SweepResult(
        found=LaneTotals.nothing(len(lanes), accounts),
        inside=np.zeros(len(rows), dtype=np.bool_),
        net_ns=np.zeros(len(rows), dtype=np.int64),
    )
    order = np.argsort(lane, kind="stable")
    edges = np.searchsorted(lane[order], np.arange(len(lanes) + 1))
    for some in _groups(lanes, edges):
        picked = order[edges[some.start] : edges[some.stop]]
        found = out.found.take(some)  # views: what is written there is written to `out`
        _sweep_group(rows, picked, lane[picked] - some.start, lanes.take(some), found, out)
    return out


def _groups(lanes: Lanes, edges: Ints) -> Iterator[slice]:
    """Runs of lanes that fit on one axis and in one batch of rows."""
    begin, axis = 0, 0
    lengths = (lanes.hi_ns - np.minimum(lanes.from_ns, lanes.hi_ns)).tolist()
    for i, length in enumerate(lengths):
        many = edges[i + 1] - edges[begin] > _GROUP_ROWS
        if i > begin and (many or axis + length > _AXIS):
            yield slice(begin, i)
            begin, axis = i, 0
        axis += length
    if begin < len(lanes):
        yield slice(begin, len(lanes))


def _sweep_group(
    rows: Rows, picked: Ints, lane: Ints, lanes: Lanes, found: LaneTotals, out: SweepResult
) -> None:
    base = np.minimum(lanes.from_ns, lanes.hi_ns)
    offset = np.concatenate(([0], np.cumsum(lanes.hi_ns - base)))

    def place(which: Ints | slice, t_ns: Ints, floor_ns: Ints) -> Ints:
        """Times of lanes `which` as positions on the axis, clipped to floor…hi."""
        clipped = np.clip(t_ns, np.maximum(floor_ns, base)[which], lanes.hi_ns[which])
        return np.asarray(offset[:-1][which] + clipped - base[which], dtype=np.int64)

    t0, t1 = rows.t0_ns[picked], rows.t1_ns[picked]
    lo, hi = lanes.lo_ns[lane], lanes.hi_ns[lane]
    outside = (t1 < lo) | (t0 > hi) | ((t0 < t1) & ((t1 <= lo) | (t0 >= hi)))
    step = rows.is_step[picked]
    found.seen[:] = np.bincount(lane, minlength=len(lanes)) > 0

    # Spans: disjoint pieces, and how much of the axis they cover up to any point.
    spans = np.flatnonzero(~step & ~outside & ~rows.background[picked])
    s_lane = lane[spans]
    s_t0, s_t1 = t0[spans], t1[spans]
    a, b, source = disjoint(
        place(s_lane, s_t0, lanes.lo_ns), place(s_lane, s_t1, lanes.lo_ns), s_t0, s_t1
    )
    cover = _Cover(a, b)

    # Steps: disjoint pieces less what spans cover of them.
    steps = np.flatnonzero(step & ~outside)
    t_lane, t_t0, t_t1 = lane[steps], t0[steps], t1[steps]
    c, d, which = disjoint(
        place(t_lane, t_t0, lanes.start_ns), place(t_lane, t_t1, lanes.start_ns), t_t0, t_t1
    )
    net = (d - c) - (cover.upto(d) - cover.upto(c))
    booked = np.zeros(len(steps), dtype=np.int64)
    np.add.at(booked, which, net)
    out.net_ns[picked[steps]] = booked
    out.inside[picked[steps]] = True
    np.add.at(found.steps_ns, t_lane, booked)

    # The rank's first and last step, and what the first keeps (a compile inside it is start-up).
    indices = rows.index[picked[steps]]
    first, found.last_end[:] = _first_and_last(t_lane, indices, t_t0, t_t1, len(lanes))
    has = np.flatnonzero(first >= 0)
    first = first[has]
    found.first_index[has] = indices[first]
    found.first_begin[has], found.first_end[has] = t_t0[first], t_t1[first]
    kept = _Kept(c, net, cover)
    found.first_booked[has] = kept.upto(place(has, t_t1[first], lanes.start_ns)) - kept.upto(
        place(has, t_t0[first], lanes.start_ns)
    )

    split = _cover_regions(cover, found, lanes, offset, place)
    piece_lane = s_lane[source]
    before = np.clip(split[piece_lane] - a, 0, b - a)
    account = rows.account[picked[spans[source]]]
    np.add.at(found.spans_before, (piece_lane, account), before)
    np.add.at(found.spans_after, (piece_lane, account), (b - a) - before)


def _cover_regions(
    cover: "_Cover",
    found: LaneTotals,
    lanes: Lanes,
    offset: Ints,
    place: Callable[[slice, Ints, Ints], Ints],
) -> Ints:
    """What spans cover of each region of a lane; returns where the loops begin, on the axis."""
    everyone = slice(None)
    head, tail = offset[:-1], offset[1:]
    at_start = place(everyone, lanes.start_ns, lanes.lo_ns)
    split = np.where(lanes.begun, head, place(everyone, found.first_begin, lanes.lo_ns))
    at_first = np.maximum(split, at_start)
    at_last = np.maximum(at_start, place(everyone, found.last_end, lanes.start_ns))
    found.cover_gap[:] = cover.upto(at_start) - cover.upto(head)
    found.cover_start[:] = cover.upto(at_first) - cover.upto(at_start)
    found.cover_loop[:] = cover.upto(tail) - cover.upto(at_first)
    found.cover_tail[:] = cover.upto(tail) - cover.upto(at_last)
    return np.asarray(split, dtype=np.int64)


def _first_and_last(lane: Ints, index: Ints, t0: Ints, t1: Ints, lanes: int) -> tuple[Ints, Ints]:
    """Per lane: the step that begins earliest (tie: lower index, then end), and the last end."""
    first = np.full(lanes, -1, dtype=np.int64)
    last_end = np.full(lanes, -NEVER, dtype=np.int64)
    if len(lane):
        order = np.lexsort((t1, index, t0, lane))
        heads = np.flatnonzero(np.diff(lane[order], prepend=-1))
        first[lane[order[heads]]] = order[heads]
        np.maximum.at(last_end, lane, t1)
    return first, last_end


class _Cover:
    """How much of the axis disjoint pieces cover up to a point."""

    def __init__(self, begin: Ints, end: Ints) -> None:
        self._begin, self._end = begin, end
        self._sum = np.concatenate(([0], np.cumsum(end - begin)))

    def upto(self, x: Ints) -> Ints:
        if not len(self._begin):
            return np.zeros(len(x), dtype=np.int64)
        i = np.searchsorted(self._begin, x, side="left")
        over = np.maximum(self._end[i - 1] - x, 0)  # of the piece that x falls into
        return np.asarray(self._sum[i] - np.where(i > 0, over, 0), dtype=np.int64)


class _Kept:
    """How much time steps keep, net of spans, up to a point."""

    def __init__(self, begin: Ints, net: Ints, cover: _Cover) -> None:
        self._begin, self._cover = begin, cover
        self._net = net
        self._sum = np.concatenate(([0], np.cumsum(net)))

    def upto(self, x: Ints) -> Ints:
        if not len(self._begin):
            return np.zeros(len(x), dtype=np.int64)
        i = np.searchsorted(self._begin, x, side="left")
        at = self._begin[i - 1]
        inside = (x - at) - (self._cover.upto(x) - self._cover.upto(at))
        partial = np.minimum(inside, self._net[i - 1])
        return np.asarray(np.where(i > 0, self._sum[i - 1] + partial, 0), dtype=np.int64)
