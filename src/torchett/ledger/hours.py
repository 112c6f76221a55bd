"""A ledger's accounts cut at full hours. What the hours of an attempt hold sums to its tree.

attempt   ├── imports ──┼── steps ────────────────┼──── steps ──┤✗ detect ┤
hours            14:00  │          15:00          │     16:00   │
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from torchett.ledger.history import History
from torchett.ledger.ledger import AttemptLedger, Ledger
from torchett.ledger.rows import Ints
from torchett.ledger.timeline import Timeline, timeline
from torchett.model.accounts import GROUPS

HOUR_NS = 3_600 * 10**9
_AT_ONCE = 1 << 20  # pieces of segments that are in memory together
Tree = dict[str, dict[str, int]]  # group → account → ns
HourSums = dict[tuple[int, str, str], int]  # hour since the epoch, group, account → rank-ns


def hour_sums(ledger: Ledger, history: Callable[[], History]) -> HourSums:
    """Rank-ns by hour, group and account; the history is asked for only where hours divide it."""
    return HourBooks().sums(ledger, history)


@dataclass(frozen=True, slots=True)
class _Known:
    """An attempt's sums, as of the tree that they sum to; of a live one, of the hours behind it."""

    tree: Tree
    lo_ns: int
    hi_ns: int
    sums: HourSums


class HourBooks:
    """The sums of a job that may still be running, again and again: a refresh costs what is new.

    An attempt that has not changed is not cut again. Of a live one the present hour is what is in
    its tree and not in the hours before; those are cut when an hour is full, and when it is over.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def sums(self, ledger: Ledger, history: Callable[[], History]) -> HourSums:
        """Rank-ns by hour, group and account; they sum to the ledger's tree."""
        sums = defaultdict[tuple[int, str, str], int](int)
        unknown: list[AttemptLedger] = []
        for attempt in ledger.attempts:
            found = self._without_history(attempt)
            if found is None:
                unknown.append(attempt)
                continue
            for key, ns in found.items():
                sums[key] += ns
        whole = timeline(ledger, history()) if unknown else None
        for attempt in unknown:
            assert whole is not None
            number = attempt.tenure.attempt.number
            mine = dict(_cut(whole.take(whole.attempt == number)))
            self._keep(attempt, mine)
            for key, ns in mine.items():
                sums[key] += ns
        return dict(sums)

    def _without_history(self, attempt: AttemptLedger) -> HourSums | None:
        """The attempt's sums, if one hour holds it or enough is known."""
        tenure, tree = attempt.tenure, attempt.tree
        hour, last = tenure.lo_ns // HOUR_NS, (tenure.hi_ns - 1) // HOUR_NS
        if last <= hour:
            return _rows(hour, tree)
        known = self._known.get(tenure.attempt.number)
        if known is None or known.lo_ns != tenure.lo_ns:
            return None
        if tenure.state != "live":
            same = known.hi_ns == tenure.hi_ns and known.tree == tree
            return known.sums if same else None
        if (known.hi_ns - 1) // HOUR_NS != last:
            return None
        left = _rows(last, tree)
        for (_, group, account), ns in known.sums.items():
            key = last, group, account
            left[key] = left.get(key, 0) - ns
        if any(ns < 0 for ns in left.values()):
            return None  # what came late changed an hour that was full
        return known.sums | {key: ns for key, ns in left.items() if ns}

    def _keep(self, attempt: AttemptLedger, sums: HourSums) -> None:
        tenure = attempt.tenure
        if tenure.state == "live":
            last = (tenure.hi_ns - 1) // HOUR_NS
            sums = {key: ns for key, ns in sums.items() if key[0] < last}
        number = tenure.attempt.number
        self._known[number] = _Known(attempt.tree, tenure.lo_ns, tenure.hi_ns, sums)


def _rows(hour: int, tree: Tree) -> HourSums:
    return {
        (hour, group, account): ns
        for group, accounts in tree.items()
        for account, ns in accounts.items()
        if ns
    }


def _cut(found: Timeline) -> Iterator[tuple[tuple[int, str, str], int]]:
    """The timeline's segments, each divided among the hours that it touches."""
    first, last = found.t0_ns // HOUR_NS, (found.t1_ns - 1) // HOUR_NS
    pieces = np.cumsum(np.maximum(last - first, 0) + 1)
    at = 0
    while at < len(found):  # so many at a time: long segments of many ranks are many pieces
        done = int(pieces[at - 1]) if at else 0
        end = max(int(np.searchsorted(pieces, done + _AT_ONCE, side="right")), at + 1)
        part = slice(at, end)
        yield from _cut_part(found.take(part), first[part], last[part])
        at = end


def _cut_part(
    found: Timeline, first: Ints, last: Ints
) -> Iterator[tuple[tuple[int, str, str], int]]:
    times = np.maximum(last - first, 0) + 1
    which = np.repeat(np.arange(len(found)), times)
    nth = np.arange(len(which)) - np.repeat(np.cumsum(times) - times, times)
    hour = first[which] + nth
    begin = np.maximum(found.t0_ns[which], hour * HOUR_NS)
    end = np.minimum(found.t1_ns[which], (hour + 1) * HOUR_NS)
    width = len(found.names)
    key = (hour * len(GROUPS) + found.group[which]) * width + found.account[which]
    keys, at = np.unique(key, return_inverse=True)
    sums = np.zeros(len(keys), dtype=np.int64)
    np.add.at(sums, at, end - begin)
    for k, ns in zip(keys.tolist(), sums.tolist(), strict=True):
        if ns:
            group = GROUPS[k // width % len(GROUPS)]
            yield (k // width // len(GROUPS), group, found.names[k % width]), ns
