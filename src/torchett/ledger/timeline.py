"""A job's time as segments: which account owns each stretch of each rank. They sum to the ledger.

    one rank in one attempt
    lo         start      first step           last step         hi
    ├──────────┼──────────────┼────────────────────┼─────────────┤
    │ gap      │ unattributed │ step │ other │step │ teardown    │   where nothing else is said
    │     ▒▒▒▒ spans ▒▒▒▒                  ▒▒▒                   │   a span lies over all of that

Reports, pages, exports and `ett.load` are views of these segments.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from torchett.ledger.disjoint import disjoint
from torchett.ledger.history import History
from torchett.ledger.ledger import AttemptLedger, Ledger
from torchett.ledger.rows import Ints, Rows
from torchett.model.accounts import ACCOUNTS, GROUPS, INDEX

_RANKS_AT_ONCE = 256  # laid end to end on one axis: bounds its length, not the result
_GROUP_OF = np.array([GROUPS.index(account.kind) for account in ACCOUNTS])
_START, _RECOVER, _IN_LOOP = (GROUPS.index(g) for g in ("start", "recover", "in_loop"))
_EFFECTIVE, _UNSAVED = INDEX["effective"], INDEX["unsaved"]
_AFTER_LAST_STEP = {"success": INDEX["teardown"], "live": INDEX["other_in_loop"]}  # else: detect


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Segments as columns, attempt by attempt and rank by rank, in order of time."""

    attempt: npt.NDArray[np.int32]
    rank: npt.NDArray[np.int32]
    account: npt.NDArray[np.int32]  # a number in `names`
    group: npt.NDArray[np.int8]  # a place in GROUPS
    t0_ns: Ints
    t1_ns: Ints
    step: Ints  # the step that owns it, the first of `count`; −1: none
    count: Ints
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.t0_ns)

    def take(self, which: npt.NDArray[np.bool_] | slice) -> "Timeline":
        """The segments at `which`."""
        columns = {f.name: getattr(self, f.name)[which] for f in fields(self) if f.name != "names"}
        return Timeline(**columns, names=self.names)

    def segments(self) -> Iterator["Segment"]:
        """One object a segment, for callers that look at each."""
        columns = (self.attempt, self.rank, self.account, self.group, self.t0_ns, self.t1_ns)
        lists = [column.tolist() for column in (*columns, self.step, self.count)]
        for attempt, rank, account, group, t0, t1, step, count in zip(*lists, strict=True):
            yield Segment(
                attempt=attempt,
                rank=rank,
                account=self.names[account],
                group=GROUPS[group],
                t0_ns=t0,
                t1_ns=t1,
                step=None if step < 0 else step,
                count=count,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """t0…t1 of one rank under one account; `count` steps from `step`, if it is theirs."""

    attempt: int
    rank: int
    account: str
    group: str
    t0_ns: int
    t1_ns: int
    step: int | None = None
    count: int = 1


def timeline(ledger: Ledger, history: History, ranks: Sequence[int] | None = None) -> Timeline:
    """The segments of these ranks (all, if none are given)."""
    parts: list[dict[str, npt.NDArray[np.generic]]] = []
    stepped = (i for i, attempt in enumerate(ledger.attempts) if attempt.first_step is not None)
    started = next(stepped, len(ledger.attempts))
    rows = history.rows
    for position, attempt in enumerate(ledger.attempts):
        mine = rows.take(rows.attempt == attempt.tenure.attempt.number)
        lost = [x.first_step for x in ledger.losses if x.attempt == attempt.tenure.attempt.number]
        wanted = range(attempt.tenure.attempt.ranks)
        chosen = [rank for rank in wanted if ranks is None or rank in set(ranks)]
        for i in range(0, len(chosen), _RANKS_AT_ONCE):
            part = _Part(attempt, mine, np.array(chosen[i : i + _RANKS_AT_ONCE]), history)
            parts.append(part.columns(min(lost, default=None), position <= started))
    names = [f.name for f in fields(Timeline) if f.name != "names"]
    empty = np.zeros(0, dtype=np.int64)
    columns = {n: np.concatenate([p[n] for p in parts]) if parts else empty for n in names}
    return Timeline(**columns, names=list(history.accounts.names))  # type: ignore[arg-type]


class _Part:
    """Some ranks of one attempt, laid end to end on one axis: lane k is at k·length … (k+1)·length.

    The axis is cut at every point where something begins or ends; each cut has one owner.
    """

    def __init__(self, attempt: AttemptLedger, rows: Rows, ranks: Ints, history: History) -> None:
        self._tenure, self._ranks = attempt.tenure, ranks
        tenure = self._tenure
        lo, hi = tenure.lo_ns, tenure.hi_ns
        self._length = hi - lo
        lane_of = np.full(max(tenure.attempt.ranks, int(rows.rank.max(initial=0)) + 1), -1)
        lane_of[ranks] = np.arange(len(ranks))
        t0, t1 = rows.t0_ns, rows.t1_ns
        outside = (t1 < lo) | (t0 > hi) | ((t0 < t1) & ((t1 <= lo) | (t0 >= hi)))
        rows = rows.take(~outside & (lane_of[rows.rank] >= 0))
        self._spans = rows.take(~rows.is_step & ~rows.background)
        self._steps = rows.take(rows.is_step)
        self._span_lane = lane_of[self._spans.rank]
        self._step_lane = lane_of[self._steps.rank]
        self._own = np.array([name.startswith("x-") for name in history.accounts.names])

    def columns(self, limit: int | None, starting: bool) -> dict[str, npt.NDArray[np.generic]]:
        """The columns of a Timeline; steps from `limit` on were lost."""
        begins, ends, lane, account, row = self._owners()
        group = self._groups(account, begins, lane, starting)
        same = (
            (account[1:] == account[:-1])
            & (row[1:] == row[:-1])
            & (lane[1:] == lane[:-1])
            & (group[1:] == group[:-1])
        )
        heads = np.flatnonzero(np.concatenate(([True], ~same))) if len(begins) else begins
        tails = np.concatenate((heads[1:] - 1, [len(begins) - 1])) if len(begins) else begins
        begins, ends = begins[heads], ends[tails]
        lane, account, group, row = lane[heads], account[heads], group[heads], row[heads]
        if limit is not None and len(begins):
            kept_ns = self._kept(begins, ends, row, limit)
            begins, ends, lane, account, group, row = _divided(
                begins, begins + kept_ns, ends, lane, account, group, row
            )
        is_step = row >= 0
        base = self._tenure.lo_ns - lane * self._length
        steps = self._steps
        return {
            "attempt": np.full(len(begins), self._tenure.attempt.number, dtype=np.int32),
            "rank": self._ranks[lane].astype(np.int32),
            "account": account.astype(np.int32),
            "group": group.astype(np.int8),
            "t0_ns": begins + base,
            "t1_ns": ends + base,
            "step": np.where(is_step, steps.index[row] if len(steps) else -1, -1),
            "count": np.where(is_step, steps.count[row] if len(steps) else 1, 1).astype(np.int64),
        }

    def _place(self, lane: Ints, t_ns: Ints, floor_ns: int) -> Ints:
        tenure = self._tenure
        clipped = np.clip(t_ns, floor_ns, tenure.hi_ns)
        return np.asarray(lane * self._length + clipped - tenure.lo_ns, dtype=np.int64)

    def _owners(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Where each elementary stretch begins and ends, its lane, account, and step row or −1."""
        tenure, spans, steps = self._tenure, self._spans, self._steps
        everyone = np.arange(len(self._ranks))
        a, b, of_span = disjoint(
            self._place(self._span_lane, spans.t0_ns, tenure.lo_ns),
            self._place(self._span_lane, spans.t1_ns, tenure.lo_ns),
            spans.t0_ns,
            spans.t1_ns,
        )
        c, d, of_step = disjoint(
            self._place(self._step_lane, steps.t0_ns, tenure.start_ns),
            self._place(self._step_lane, steps.t1_ns, tenure.start_ns),
            steps.t0_ns,
            steps.t1_ns,
        )
        never = np.iinfo(np.int64).max
        first_ns = np.full(len(everyone), never)
        last_ns = np.full(len(everyone), -never)
        np.minimum.at(first_ns, self._step_lane, steps.t0_ns)
        np.maximum.at(last_ns, self._step_lane, steps.t1_ns)
        begun = first_ns != never
        head = everyone * self._length
        start = self._place(everyone, np.full(len(everyone), tenure.start_ns), tenure.lo_ns)
        self._first = np.where(begun, self._place(everyone, first_ns, tenure.lo_ns), never)
        first = np.where(begun, self._place(everyone, first_ns, tenure.start_ns), never)
        last = np.where(begun, self._place(everyone, last_ns, tenure.start_ns), never)
        edges = (a, b, c, d, head, head + self._length, start)
        cuts = np.concatenate((*edges, *(x[begun] for x in (self._first, first, last))))
        cuts.sort(kind="stable")  # runs that are in order already: quicker than np.unique
        cuts = cuts[np.concatenate(([True], cuts[1:] != cuts[:-1]))]
        begins, ends = cuts[:-1], cuts[1:]
        lane = begins // max(self._length, 1)
        gap = INDEX["hardware_setup" if tenure.position == 0 else "restart_gap"]
        after = _AFTER_LAST_STEP.get(tenure.state, INDEX["detect"])
        account = np.where(begins < last[lane], INDEX["other_in_loop"], after)
        account = np.where(begins < first[lane], INDEX["unattributed"], account)
        step = _holder(begins, c, d)
        row = np.where(step >= 0, of_step[step] if len(of_step) else -1, -1)
        account = np.where(row >= 0, _EFFECTIVE, account)
        account = np.where(begins < start[lane], gap, account)
        span = _holder(begins, a, b)
        if len(of_span):
            account = np.where(span >= 0, spans.account[of_span[span]], account)
        row = np.where((span >= 0) | (begins < start[lane]), -1, row)
        return begins, ends, lane, account, row

    def _groups(self, account: Ints, begins: Ints, lane: Ints, starting: bool) -> Ints:
        """The group each account counts under here: rule 4."""
        start = _START if starting else _RECOVER
        known = np.minimum(account, len(ACCOUNTS) - 1)
        group = _GROUP_OF[known]
        is_start = (group == _START) | (account == INDEX["restart_gap"])
        group = np.where(is_start, start, group)
        own = np.where(begins < self._first[lane], start, _IN_LOOP)
        return np.asarray(np.where(account < len(ACCOUNTS), group, own), dtype=np.int64)

    def _kept(self, begins: Ints, ends: Ints, row: Ints, limit: int) -> Ints:
        """Of each stretch, how much survived where steps from `limit` on were lost.

        A row of steps that was lost in part keeps its share at its begin, once spans have taken
        theirs, as the ledger does it.
        """
        steps = self._steps
        length = np.where(row >= 0, ends - begins, 0)
        net = np.zeros(len(steps), dtype=np.int64)
        np.add.at(net, row[row >= 0], length[row >= 0])
        lost = steps.count - np.clip(limit - steps.index, 0, steps.count)
        keeps = net - net * lost // steps.count
        order = np.lexsort((begins, row))  # the stretches of one row, one after the other
        run = np.cumsum(length[order]) - length[order]
        heads = np.concatenate(([True], row[order][1:] != row[order][:-1]))
        before = np.zeros(len(row), dtype=np.int64)
        before[order] = run - np.maximum.accumulate(np.where(heads, run, 0))
        if not len(steps):
            return ends - begins
        return np.where(row >= 0, np.clip(keeps[row] - before, 0, length), ends - begins)


def _divided(
    begins: Ints, middles: Ints, ends: Ints, lane: Ints, account: Ints, group: Ints, row: Ints
) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
    """Each stretch up to its middle as it was, from there on as unsaved; empty ones left out."""
    kept, lost = np.flatnonzero(middles > begins), np.flatnonzero(ends > middles)
    order = np.argsort(np.concatenate((2 * kept, 2 * lost + 1)))

    def both(first: Ints, second: Ints) -> Ints:
        return np.concatenate((first[kept], second[lost]))[order]

    unsaved = np.full(len(begins), _UNSAVED)
    unsaved_group = np.full(len(begins), GROUPS.index("unsaved"))
    return (
        both(begins, middles),
        both(middles, ends),
        both(lane, lane),
        both(account, unsaved),
        both(group, unsaved_group),
        both(row, row),
    )


def _holder(at: Ints, begin: Ints, end: Ints) -> Ints:
    """Which of the disjoint pieces holds each point; −1: none."""
    if not len(begin):
        return np.full(len(at), -1)
    i = np.searchsorted(begin, at, side="right") - 1
    return np.asarray(np.where((i >= 0) & (at < end[i]), i, -1))
