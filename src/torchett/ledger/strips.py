"""An attempt as a strip: which account owns each of a row of instants.

├──────┼──────┼──────┼──────┤      cells, asked at their middles
   ▒      ▒      █      █          the account that most ranks are in
"""

from collections.abc import Sequence

import numpy as np

from torchett.ledger.ledger import AttemptLedger
from torchett.ledger.rows import Ints, Rows
from torchett.model.accounts import INDEX

_MOST_RANKS = 16


def strip(attempt: AttemptLedger, rows: Rows, limit: int | None, cells: int) -> list[int]:
    """The account (by number) of each cell; `limit`: steps from there on were lost."""
    tenure = attempt.tenure
    width = tenure.hi_ns - tenure.lo_ns
    at = tenure.lo_ns + (2 * np.arange(cells, dtype=np.int64) + 1) * width // (2 * cells)
    mine = rows.take(rows.attempt == tenure.attempt.number)
    ranks = np.unique(np.linspace(0, tenure.attempt.ranks - 1, _MOST_RANKS).astype(int))
    votes = np.array([_owners(attempt, mine.take(mine.rank == r), limit, at) for r in ranks])
    return [int(np.bincount(column).argmax()) for column in votes.T]


def _owners(attempt: AttemptLedger, rows: Rows, limit: int | None, at: Ints) -> Sequence[int]:
    """Rule 2, instant by instant, for one rank."""
    tenure = attempt.tenure
    steps = rows.take(rows.is_step & (rows.t1_ns >= tenure.lo_ns) & (rows.t0_ns <= tenure.hi_ns))
    spans = rows.take(~rows.is_step & ~rows.background)
    first = int(steps.t0_ns.min()) if len(steps) else None
    last = int(steps.t1_ns.max()) if len(steps) else None
    after = {"success": "teardown", "live": "other_in_loop"}.get(tenure.state, "detect")
    gap = "hardware_setup" if tenure.position == 0 else "restart_gap"
    owners = []
    for t in at.tolist():
        span = _latest(spans, t)
        if span is not None:
            owners.append(int(spans.account[span]))
            continue
        step = _latest(steps, t)
        if t < tenure.start_ns:
            name = gap
        elif step is not None:
            lost = limit is not None and int(steps.index[step]) >= limit
            name = "unsaved" if lost else "effective"
        elif first is None or last is None or t < first:
            name = "unattributed"
        else:
            name = "other_in_loop" if t < last else after
        owners.append(INDEX[name])
    return owners


def _latest(rows: Rows, t: int) -> int | None:
    """Of the rows that hold instant t, the one that began last."""
    holding = np.flatnonzero((rows.t0_ns <= t) & (t < rows.t1_ns))
    if not len(holding):
        return None
    return int(holding[np.lexsort((-holding, rows.t1_ns[holding], -rows.t0_ns[holding]))[0]])
