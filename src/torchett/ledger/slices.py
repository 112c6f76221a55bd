"""A job's time as slices: which account owns each stretch of each rank. They sum to the ledger.

lane    ├ gap ┤├ span ┤├ step 0 ┤├ span ┤├ step 1 ┤ …        one rank in one attempt
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torchett.ledger.history import History
from torchett.ledger.ledger import AttemptLedger, Ledger
from torchett.ledger.rows import Rows
from torchett.model.accounts import is_own
from torchett.model.overlap import latest_wins

Piece = tuple[int, int, str, int]  # begin, end, account, the step it belongs to (−1: none)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """t0…t1 of one rank under one account; `count` steps from `step`, if it is theirs."""

    attempt: int
    rank: int
    account: str
    group: str
    t0_ns: int
    t1_ns: int
    step: int | None = None
    count: int = 1


def slices(ledger: Ledger, history: History) -> Iterator[Slice]:
    """Every slice, attempt by attempt and rank by rank, in order of time."""
    rows = history.rows
    for attempt in ledger.attempts:
        number = attempt.tenure.attempt.number
        mine = rows.take(rows.attempt == number)
        order = np.argsort(mine.rank, kind="stable")
        mine = mine.take(order)
        edges = np.searchsorted(mine.rank, np.arange(attempt.tenure.attempt.ranks + 1))
        lost = [loss.first_step for loss in ledger.losses if loss.attempt == number]
        for rank in range(attempt.tenure.attempt.ranks):
            lane = mine.take(slice(int(edges[rank]), int(edges[rank + 1])))
            yield from _lane(attempt, rank, lane, history.accounts.names, min(lost, default=None))


def _lane(
    attempt: AttemptLedger, rank: int, rows: Rows, names: Sequence[str], limit: int | None
) -> Iterator[Slice]:
    tenure = attempt.tenure
    lo, start, hi = tenure.lo_ns, tenure.start_ns, tenure.hi_ns
    t0s, t1s = rows.t0_ns, rows.t1_ns
    touches = (t0s < t1s) & ((t1s <= lo) | (t0s >= hi))
    inside = (t1s >= lo) & (t0s <= hi) & ~touches
    steps = rows.take(rows.is_step & inside)
    spans = rows.take(~rows.is_step & ~rows.background & inside)
    first = int(steps.t0_ns.min()) if len(steps) else None
    last = int(steps.t1_ns.max()) if len(steps) else None
    pieces = _rest(tenure.state, start, hi, first, last)
    done = latest_wins(_clipped(steps, start, hi))
    pieces = _over([(a, b, "effective", row) for a, b, row in done], pieces)
    gap = "hardware_setup" if tenure.position == 0 else "restart_gap"
    pieces = _over([(lo, start, gap, -1)] if start > lo else [], pieces)
    pieces = _over(_owned(spans, lo, hi, names, first), pieces)
    index, count = steps.index, steps.count
    for t0, t1, account, row in _survived(pieces, steps, limit):
        yield Slice(
            attempt=tenure.attempt.number,
            rank=rank,
            account=account,
            group=_group(attempt, account, first is not None and t0 >= first),
            t0_ns=t0,
            t1_ns=t1,
            step=int(index[row]) if row >= 0 else None,
            count=int(count[row]) if row >= 0 else 1,
        )


def _rest(state: str, start: int, hi: int, first: int | None, last: int | None) -> list[Piece]:
    """What nothing claims: before the first step, between steps, after the last."""
    if first is None or last is None:
        return [(start, hi, "unattributed", -1)] if hi > start else []
    after = {"success": "teardown", "live": "other_in_loop"}.get(state, "detect")
    a, b = min(max(first, start), hi), min(max(last, start), hi)
    parts = [(start, a, "unattributed", -1), (a, b, "other_in_loop", -1), (b, hi, after, -1)]
    return [part for part in parts if part[1] > part[0]]


def _owned(spans: Rows, lo: int, hi: int, names: Sequence[str], first: int | None) -> list[Piece]:
    """The spans' pieces; a user's own in two where the first step begins, as its group changes."""
    accounts = spans.account.tolist()
    out: list[Piece] = []
    for a, b, which in latest_wins(_clipped(spans, lo, hi)):
        name = names[accounts[which]]
        if is_own(name) and first is not None and a < first < b:
            out.append((a, first, name, -1))
            a = first
        out.append((a, b, name, -1))
    return out


def _survived(pieces: Sequence[Piece], steps: Rows, limit: int | None) -> Iterator[Piece]:
    """The pieces, with steps from `limit` on unsaved; of a run lost in part, its share at the end.

    A run is shared out once spans have taken theirs, as the ledger does it.
    """
    if limit is None:
        yield from pieces
        return
    left = [0] * len(steps)  # of each row, what is effective of it
    for a, b, _, row in pieces:
        if row >= 0:
            left[row] += b - a
    for row, (index, count) in enumerate(
        zip(steps.index.tolist(), steps.count.tolist(), strict=True)
    ):
        lost = count - min(max(limit - index, 0), count)
        left[row] -= left[row] * lost // count
    for a, b, account, row in pieces:
        if row < 0:
            yield a, b, account, row
            continue
        cut = min(b, a + left[row])
        left[row] -= cut - a
        if cut > a:
            yield a, cut, "effective", row
        if b > cut:
            yield cut, b, "unsaved", row


def _clipped(rows: Rows, lo: int, hi: int) -> list[tuple[int, int, int, int]]:
    t0, t1 = rows.t0_ns, rows.t1_ns
    begin, end = np.clip(t0, lo, hi), np.clip(t1, lo, hi)
    return list(zip(begin.tolist(), end.tolist(), t0.tolist(), t1.tolist(), strict=True))


def _over(top: Sequence[Piece], bottom: Sequence[Piece]) -> list[Piece]:
    """The pieces of `top`, and of `bottom` what they leave; both disjoint and in order."""
    out: list[Piece] = []
    at = 0
    for a, b, account, row in bottom:
        while at < len(top) and top[at][1] <= a:
            out.append(top[at])
            at += 1
        while at < len(top) and top[at][0] < b:
            t0, t1 = top[at][:2]
            if t0 > a:
                out.append((a, t0, account, row))
            a = max(a, t1)
            if t1 > b:
                break  # it reaches into what comes next
            out.append(top[at])
            at += 1
        if a < b:
            out.append((a, b, account, row))
    out += top[at:]
    return out


def _group(attempt: AttemptLedger, account: str, stepped: bool) -> str:
    """The group this attempt's ledger books the account under; a user's own: where it fell."""
    groups = [group for group, accounts in attempt.tree.items() if accounts.get(account)]
    if is_own(account) and len(groups) > 1:
        return "in_loop" if stepped else next(g for g in groups if g != "in_loop")
    return groups[0] if groups else "unattributed"
