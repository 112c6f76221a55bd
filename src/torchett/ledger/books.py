"""Books: the ledger of a job that may still be running. A refresh costs what is new.

    post(batch)  rows arrive, in any order          ┐ per attempt: its state
    settle(job)  the ledger as of now               ┘

It keeps what has been settled for good as one `LaneTotals` per rank and re-reads only its tail:

    ├──────────── settled ────────────┤──── tail ────┤
    rows that nothing later can touch   the last rows of each rank, swept again on each refresh

A row that reaches back behind the tail (a span longer than the tail, a rank that reports late)
sends its attempt back to the start. The result is the same whichever way the rows came.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchett.ledger.ledger import Ledger, Loss
from torchett.ledger.rows import AccountTable, Batch, Ints, Rows
from torchett.ledger.rules.attempt_results import AttemptResult, Attempts, AttemptTable, result_of
from torchett.ledger.rules.one_account import NEVER, Lanes, LaneTotals, SweepResult, sweep
from torchett.ledger.rules.start_and_recover import time_to
from torchett.ledger.rules.survival import (
    Executions,
    above,
    highest_below,
    last_durable,
    resumed_below,
)
from torchett.ledger.rules.window import Tenure, Window, window
from torchett.model.values import Checkpoint, Job

_TAIL_ROWS = 1024  # what stays open to late rows, per attempt; at least 32 a rank
_BATCH_ROWS = 1 << 17  # rows put together for one sweep: bounds the memory, not the result


@dataclass(slots=True)
class _AttemptState:
    """One attempt's rows, and what is known of them."""

    parts: list[Rows] = field(default_factory=list)  # every row ever posted
    latest_ns: int = -NEVER
    fresh: bool = True  # rows have come since the last sweep
    key: tuple[int, int, int, int, str] | None = None  # what of its tenure it was swept with
    tail: list[Rows] = field(default_factory=list)  # rows not settled for good
    settled: LaneTotals | None = None
    from_ns: Ints | None = None  # per rank: up to where it is settled
    done: list[Executions] = field(default_factory=list)  # steps settled for good
    open: list[Executions] = field(default_factory=list)  # steps of the tail

    def forget(self) -> None:
        """Nothing is settled any more: all rows are tail again."""
        self.tail, self.settled, self.from_ns, self.done = list(self.parts), None, None, []

    def lanes(self, tenure: Tenure) -> Lanes:
        """One lane a rank, from where the state is settled to where the attempt ends."""
        ranks = tenure.attempt.ranks
        lo = np.full(ranks, tenure.lo_ns, dtype=np.int64)
        return Lanes(
            lo_ns=lo,
            start_ns=np.full(ranks, tenure.start_ns, dtype=np.int64),
            hi_ns=np.full(ranks, tenure.hi_ns, dtype=np.int64),
            from_ns=lo if self.from_ns is None else self.from_ns,
            begun=np.zeros(ranks, np.bool_) if self.settled is None else self.settled.begun,
        )


class Books:
    """The running ledger of one job."""

    def __init__(self, accounts: AccountTable | None = None) -> None:
        self.accounts = accounts or AccountTable()
        self._states: defaultdict[int, _AttemptState] = defaultdict(_AttemptState)
        self._outcomes: dict[int, AttemptResult] = {}
        self._checkpoints: list[Checkpoint] = []
        self._frame = Window()
        self._table = AttemptTable.blank(0, 0)

    def post(self, batch: Batch) -> None:
        """Add new rows; nothing is computed yet."""
        for number, rows in _by_attempt(batch.rows):
            state = self._states[number]
            state.parts.append(rows)
            state.tail.append(rows)
            state.fresh = True
            state.latest_ns = max(state.latest_ns, int(rows.t1_ns.max()))
            if state.from_ns is not None and _reaches_back(rows, state.from_ns):
                state.forget()
        for checkpoint in batch.checkpoints:
            self._checkpoints.append(checkpoint)
            state = self._states[checkpoint.attempt]
            state.latest_ns = max(state.latest_ns, checkpoint.durable_ns)

    def settle(
        self, job: Job, now_ns: int | None = None, provisional: Batch | None = None
    ) -> Ledger:
        """The ledger as of now; provisional rows (a live record's ring) count in this call only."""
        provisional = provisional or Batch(rows=Rows.none())
        extra = dict(_by_attempt(provisional.rows))
        self._frame = self._window(job, now_ns, extra, provisional.checkpoints)
        self._sweep(self._frame.tenures, extra)
        return self._close(job, provisional.checkpoints)

    # Rule 1: the window ----------------------------------------------------------------------

    def _window(
        self,
        job: Job,
        now_ns: int | None,
        extra: dict[int, Rows],
        checkpoints: Sequence[Checkpoint],
    ) -> Window:
        latest = {number: state.latest_ns for number, state in self._states.items()}
        for number, rows in extra.items():
            latest[number] = max(latest.get(number, -NEVER), int(rows.t1_ns.max()))
        for checkpoint in checkpoints:
            known = latest.get(checkpoint.attempt, -NEVER)
            latest[checkpoint.attempt] = max(known, checkpoint.durable_ns)
        for attempt in job.attempts:
            times = (attempt.start_ns, attempt.end_ns, latest.get(attempt.number))
            latest[attempt.number] = max(t for t in times if t is not None)
        return window(job.attempts, latest, now_ns, self._frame)

    # Rule 2: one account per instant and rank ------------------------------------------------

    def _sweep(self, tenures: Sequence[Tenure], extra: dict[int, Rows]) -> None:
        """Sweep the attempts that changed, a chunk of rows at a time."""
        chunk: list[tuple[Tenure, _AttemptState]] = []
        size = 0
        for tenure in tenures:
            number, ranks = tenure.attempt.number, tenure.attempt.ranks
            state = self._states[number]
            key = (tenure.lo_ns, tenure.start_ns, ranks, tenure.hi_ns, tenure.state)
            if state.key == key and not state.fresh and number not in extra:
                continue
            moved = state.key is not None and state.key[:3] != key[:3]
            cut_off = state.from_ns is not None and bool((state.from_ns > tenure.hi_ns).any())
            more = extra.get(number, Rows.none())
            late = state.from_ns is not None and _reaches_back(more, state.from_ns)
            if moved or cut_off or late:
                state.forget()
            if tenure.state == "live":
                self._settle_head(tenure, state, more)
            state.key, state.fresh = key, number in extra
            chunk.append((tenure, state))
            size += sum(map(len, state.tail)) + ranks
            if size > _BATCH_ROWS:
                self._sweep_tails(chunk, extra)
                chunk, size = [], 0
        if chunk:
            self._sweep_tails(chunk, extra)

    def _settle_head(self, tenure: Tenure, state: _AttemptState, more: Rows) -> None:
        """Settle for good all but the last rows of a tail that has grown long.

        A rank with a provisional row that began earlier (a span that is not over) has to wait.
        """
        keep = max(_TAIL_ROWS, 32 * tenure.attempt.ranks)
        if sum(map(len, state.tail)) <= 2 * keep:
            return
        rows = _of_ranks(Rows.joined(state.tail), tenure)
        lanes = state.lanes(tenure)
        lanes.hi_ns = _quiet_cuts(rows, lanes.from_ns, keep // tenure.attempt.ranks)
        lanes.hi_ns = np.minimum(lanes.hi_ns, tenure.hi_ns)
        more = _of_ranks(more, tenure)
        waits = more.rank[~more.background & (more.t0_ns < lanes.hi_ns[more.rank])]
        lanes.hi_ns[waits] = lanes.from_ns[waits]
        ends = lanes.hi_ns[rows.rank]
        head = (rows.t0_ns < ends) & (rows.t1_ns <= ends)
        state.tail = [rows.take(~head)]
        rows = rows.take(head)
        swept = sweep(rows, rows.rank.astype(np.int64), lanes, len(self.accounts.names))
        state.settled = swept.found if state.settled is None else state.settled.then(swept.found)
        state.done += _executions(rows, swept, slice(None))
        state.from_ns = lanes.hi_ns

    def _sweep_tails(
        self, chunk: list[tuple[Tenure, _AttemptState]], extra: dict[int, Rows]
    ) -> None:
        parts: list[Rows] = []
        lanes: list[Lanes] = []
        lane_of: list[Ints] = []
        row_ends, lane_ends = [0], [0]
        for tenure, state in chunk:
            more = extra.get(tenure.attempt.number)
            tail = Rows.joined(state.tail)
            state.tail = [tail]  # so that the next look joins two parts, not all there were
            tail = tail if more is None else Rows.joined([tail, more])
            parts.append(_of_ranks(tail, tenure))
            lanes.append(state.lanes(tenure))
            lane_of.append(parts[-1].rank.astype(np.int64) + lane_ends[-1])
            row_ends.append(row_ends[-1] + len(parts[-1]))
            lane_ends.append(lane_ends[-1] + tenure.attempt.ranks)
        rows = Rows.joined(parts)
        swept = sweep(rows, np.concatenate(lane_of), Lanes.joined(lanes), len(self.accounts.names))
        for i, (tenure, state) in enumerate(chunk):
            found = swept.found.take(slice(lane_ends[i], lane_ends[i + 1]))
            whole = found if state.settled is None else state.settled.then(found)
            state.open = _executions(parts[i], swept, slice(row_ends[i], row_ends[i + 1]))
            self._outcomes[tenure.attempt.number] = result_of(tenure, whole)

    # Rules 3 to 6: what survived, and the totals ---------------------------------------------

    def _close(self, job: Job, checkpoints: Sequence[Checkpoint]) -> Ledger:
        frame = self._frame
        numbers = [tenure.attempt.number for tenure in frame.tenures]
        outcomes = [self._outcomes[number] for number in numbers]
        resumes = [
            None if tenure.attempt.resumed_from == "peer" else outcome.first_step
            for tenure, outcome in zip(frame.tenures, outcomes, strict=True)
        ]
        limits = resumed_below(resumes)
        by_number = dict(zip(numbers, limits.tolist(), strict=True))
        durable = last_durable([*self._checkpoints, *checkpoints], by_number)
        cut_short = bool(frame.tenures) and frame.tenures[-1].failed
        if cut_short:
            limits = np.minimum(limits, durable + 1)
        if len(self._table.booked) != len(outcomes):
            self._table = AttemptTable.blank(len(outcomes), len(self.accounts.names))
        at_risk = 0
        for position, limit in enumerate(limits.tolist()):
            outcome = outcomes[position]
            if outcome.limit != limit:
                self._book_unsaved(position, limit, numbers, resumes)
            if self._table.outcomes[position] is not outcome or outcome.fresh:
                self._table.enter(position, outcome)
            if frame.live and limit > durable + 1:
                at_risk += self._at_risk(numbers[position], outcome, durable)
        reached = (outcome.reached for outcome in outcomes)
        last_step = max((index for index in reached if index is not None), default=None)
        attempts = Attempts(frame.tenures, outcomes, self._table.copied(), self.accounts.names)
        start, recover = time_to(frame, outcomes)
        return Ledger(
            job=job.name,
            ranks=job.ranks,
            window=frame,
            tree=attempts.tree(),
            attempts=attempts,
            losses=tuple(loss for outcome in outcomes for loss in outcome.losses),
            time_to_start_ns=start,
            time_to_recover_ns=recover,
            at_risk_ns=at_risk,
            estimated_ns=sum(outcome.estimated_ns for outcome in outcomes),
            last_step=last_step,
            last_durable_step=durable,
        )

    def _at_risk(self, number: int, outcome: AttemptResult, durable: int) -> int:
        """Rank-ns in the attempt's surviving steps above the last durable one."""
        if outcome.at_risk[0] != durable:
            state = self._states[number]
            parts = [*state.done, *state.open]
            net = above(parts, durable + 1)[0] - outcome.unsaved_ns
            outcome.at_risk = durable, net
        return outcome.at_risk[1]

    def _book_unsaved(
        self, position: int, limit: int, numbers: list[int], resumes: list[int | None]
    ) -> None:
        """Book the attempt's steps from `limit` on as unsaved, each to the resume that lost it."""
        outcome = self._outcomes[numbers[position]]
        state = self._states[numbers[position]]
        parts = [*state.done, *state.open]
        outcome.limit, outcome.fresh, outcome.at_risk = limit, True, (-2, 0)
        outcome.reached = highest_below(parts, limit)
        outcome.unsaved_ns, outcome.estimated_ns = above(parts, limit)
        outcome.losses = ()
        lowest = min((part.lowest for part in parts), default=0)
        ceiling = max((part.highest for part in parts), default=-1) + 1
        for later in range(position + 1, len(resumes) + 1):
            if ceiling <= limit:
                return
            at_end = later == len(resumes)
            resume = limit if at_end else resumes[later]
            if resume is None or resume >= ceiling:
                continue
            floor = max(resume, limit)
            lost = above(parts, floor)[0] - above(parts, ceiling)[0]
            outcome.losses += (
                Loss(
                    attempt=numbers[position],
                    resumed=None if at_end else numbers[later],
                    first_step=max(floor, lowest),
                    last_step=ceiling - 1,
                    net_ns=lost,
                ),
            )
            ceiling = floor


def _by_attempt(rows: Rows) -> Iterator[tuple[int, Rows]]:
    """The rows of each attempt; without a copy where they already lie together."""
    if not len(rows):
        return
    numbers = rows.attempt
    if (np.diff(numbers) < 0).any():
        rows = rows.take(np.argsort(numbers, kind="stable"))
        numbers = rows.attempt
    edges = np.flatnonzero(np.diff(numbers)) + 1
    for a, b in zip([0, *edges.tolist()], [*edges.tolist(), len(rows)], strict=True):
        yield int(numbers[a]), rows.take(slice(a, b))


def _of_ranks(rows: Rows, tenure: Tenure) -> Rows:
    """The rows of ranks that the attempt has."""
    ranks = tenure.attempt.ranks
    if not len(rows) or int(rows.rank.max()) < ranks:
        return rows
    return rows.take(rows.rank < ranks)


def _reaches_back(rows: Rows, from_ns: Ints) -> bool:
    taking = (rows.rank < len(from_ns)) & ~rows.background
    return bool((rows.t0_ns[taking] < from_ns[rows.rank[taking]]).any())


def _quiet_cuts(rows: Rows, from_ns: Ints, keep: int) -> Ints:
    """Per rank a time that no foreground row straddles, about `keep` rows before its last."""
    cuts = from_ns.copy()
    order = np.lexsort((rows.t0_ns, rows.rank))
    order = order[~rows.background[order]]
    edges = np.searchsorted(rows.rank[order], np.arange(len(from_ns) + 1))
    for rank in range(len(from_ns)):
        mine = order[edges[rank] : edges[rank + 1]]
        if len(mine) <= keep:
            continue
        reach = np.maximum.accumulate(rows.t1_ns[mine])
        begins = rows.t0_ns[mine]
        quiet = np.flatnonzero(reach[:-1] <= begins[1:]) + 1
        quiet = quiet[quiet <= len(mine) - keep]
        if len(quiet):
            cuts[rank] = max(int(begins[quiet[-1]]), int(from_ns[rank]))
    return cuts


def _executions(rows: Rows, swept: SweepResult, piece: slice) -> list[Executions]:
    inside = swept.inside[piece]
    if not inside.any():
        return []
    net = swept.net_ns[piece][inside]
    return [Executions.of(rows.index[inside], rows.count[inside], net)]
