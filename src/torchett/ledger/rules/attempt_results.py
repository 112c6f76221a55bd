"""The result of each attempt: its accounts, its first and last step; a table of all attempts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from torchett.ledger.ledger import AttemptLedger, Loss
from torchett.ledger.rows import Totals, totals
from torchett.ledger.rules.one_account import LaneTotals
from torchett.ledger.rules.window import Tenure
from torchett.model.accounts import ACCOUNTS, GROUPS, INDEX

_EFFECTIVE, _UNSAVED = INDEX["effective"], INDEX["unsaved"]
_UNATTRIBUTED, _OTHER = INDEX["unattributed"], INDEX["other_in_loop"]
_AFTER_LAST_STEP = {"success": INDEX["teardown"], "live": _OTHER}  # else: detect
_KIND_OF = [account.kind for account in ACCOUNTS]


@dataclass(slots=True, kw_only=True)
class AttemptResult:
    """The outcome of one attempt: rule 2's part, and rule 3's once thresholds are known."""

    booked: Totals  # by account, steps left out
    own_start: Totals  # by account: of users' own, what fell before the rank's first step
    steps_ns: int = 0
    first_step: int | None = None
    progress_ns: int | None = None
    last_end_ns: int | None = None
    limit: int | None = None  # steps from here on were lost
    reached: int | None = None  # the highest step that was not
    at_risk: tuple[int, int] = (-2, 0)  # of which durable step, rank-ns above it
    unsaved_ns: int = 0
    estimated_ns: int = 0
    losses: tuple[Loss, ...] = ()
    fresh: bool = True  # not yet entered as it is


@dataclass(slots=True, kw_only=True)
class AttemptTable:
    """Two tables, attempt × account: all that is booked, and users' own before the first step."""

    booked: Totals
    own_start: Totals
    outcomes: list[AttemptResult | None]

    @staticmethod
    def blank(attempts: int, accounts: int) -> "AttemptTable":
        return AttemptTable(
            booked=np.zeros((attempts, accounts), dtype=np.object_),
            own_start=np.zeros((attempts, accounts), dtype=np.object_),
            outcomes=[None] * attempts,
        )

    def enter(self, position: int, outcome: AttemptResult) -> None:
        """Put an attempt's outcome in its row."""
        missing = len(outcome.booked) - self.booked.shape[1]
        if missing > 0:
            self.booked = np.pad(self.booked, ((0, 0), (0, missing)))
            self.own_start = np.pad(self.own_start, ((0, 0), (0, missing)))
        width = len(outcome.booked)
        self.booked[position, :width] = outcome.booked
        self.own_start[position, :width] = outcome.own_start
        self.booked[position, _EFFECTIVE] = outcome.steps_ns - outcome.unsaved_ns
        self.booked[position, _UNSAVED] = outcome.unsaved_ns
        self.outcomes[position] = outcome
        outcome.fresh = False

    def copied(self) -> "AttemptTable":
        return replace(self, booked=self.booked.copy(), own_start=self.own_start.copy())


def result_of(tenure: Tenure, found: LaneTotals) -> AttemptResult:
    """The attempt's accounts: its spans, and what is left where there are none."""
    lo, start, hi = tenure.lo_ns, tenure.start_ns, tenure.hi_ns
    begun = found.begun
    first = np.clip(found.first_begin, start, hi)
    last = np.clip(found.last_end, start, hi)
    tail = np.where(begun, (hi - last) - found.cover_tail, 0)
    loop_cover = found.cover_loop - found.cover_tail
    other = np.where(begun, (last - first) - loop_cover - found.steps_ns, 0)

    booked = totals(found.spans_before + found.spans_after)
    own_start = totals(found.spans_before)
    own_start[: len(ACCOUNTS)] = 0
    before_start = INDEX["hardware_setup" if tenure.position == 0 else "restart_gap"]
    booked[before_start] += totals((start - lo) - found.cover_gap)
    booked[_UNATTRIBUTED] += totals((first - start) - found.cover_start)
    booked[_OTHER] += totals(other)
    booked[_AFTER_LAST_STEP.get(tenure.state, INDEX["detect"])] += totals(tail)

    if not begun.any():
        return AttemptResult(booked=booked, own_start=own_start)
    lead = int(np.lexsort((found.first_index, found.first_begin))[0])
    soonest = int(np.argmin(found.first_end))
    return AttemptResult(
        booked=booked,
        own_start=own_start,
        steps_ns=int(totals(found.steps_ns)),
        first_step=int(found.first_index[lead]),
        progress_ns=min(int(found.first_end[soonest]), hi) - int(found.first_booked[soonest]),
        last_end_ns=min(int(found.last_end.max()), hi),
    )


class Attempts(Sequence[AttemptLedger]):
    """The attempts' ledgers, made when asked for: a job may have thousands."""

    def __init__(
        self,
        tenures: Sequence[Tenure],
        outcomes: Sequence[AttemptResult],
        table: AttemptTable,
        names: Sequence[str],
    ) -> None:
        self._tenures, self._outcomes = tenures, outcomes
        self._table, self._names = table, list(names)
        stepped = (i for i, outcome in enumerate(outcomes) if outcome.first_step is not None)
        self._started = next(stepped, len(outcomes))  # up to here it is start, then recover

    def __len__(self) -> int:
        return len(self._tenures)

    @overload
    def __getitem__(self, at: int) -> AttemptLedger: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[AttemptLedger]: ...
    def __getitem__(self, at: int | slice) -> AttemptLedger | Sequence[AttemptLedger]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        tenure, outcome = self._tenures[at], self._outcomes[at]
        booked, own_start = self._table.booked[at], self._table.own_start[at]
        return AttemptLedger(
            tenure=tenure,
            first_step=outcome.first_step,
            progress_ns=outcome.progress_ns,
            last_end_ns=outcome.last_end_ns,
            tree=self._tree(booked, own_start, tenure.position <= self._started),
        )

    def tree(self) -> dict[str, dict[str, int]]:
        """Group → account → ns, over all attempts."""
        booked, own_start = self._table.booked, self._table.own_start
        early, late = slice(0, self._started + 1), slice(self._started + 1, None)
        tree = self._tree(booked[early].sum(axis=0), own_start[early].sum(axis=0), True)
        later = self._tree(booked[late].sum(axis=0), own_start[late].sum(axis=0), False)
        for group, accounts in later.items():
            for name, ns in accounts.items():
                tree[group][name] = tree[group].get(name, 0) + ns
        return tree

    def _tree(self, booked: Totals, own_start: Totals, starting: bool) -> dict[str, dict[str, int]]:
        """Rule 4's groups: start accounts are `start` until a first step was made."""
        tree: dict[str, dict[str, int]] = {group: {} for group in GROUPS}
        start = "start" if starting else "recover"
        for i, (name, ns) in enumerate(zip(self._names, booked.tolist(), strict=False)):
            if not ns:
                continue
            if i >= len(ACCOUNTS):
                early = int(own_start[i])
                tree[start][name] = early
                tree["in_loop"][name] = ns - early
            elif _KIND_OF[i] == "start" or i == INDEX["restart_gap"]:
                tree[start][name] = ns
            else:
                tree[_KIND_OF[i]][name] = ns
        return tree
