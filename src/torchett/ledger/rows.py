"""What was recorded, as columns: one row per span or step, one table for all ranks and attempts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from torchett.model.accounts import INDEX, NAMES
from torchett.model.values import Checkpoint, Span, Step

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
Totals = npt.NDArray[np.object_]  # Python's integers: many ranks' nanoseconds outgrow 64 bits

STEP = -1  # in the account column: this row is a step (or a run of them)


def totals(ns: Ints) -> Totals:
    """The sum over the first axis, exact beyond 64 bits: 16,384 ranks reach them in a week."""
    high, low = (ns >> 32).sum(axis=0), (ns & 0xFFFFFFFF).sum(axis=0)
    return np.asarray((high.astype(object) << 32) + low.astype(object), dtype=object)


class AccountTable:
    """Numbers for account names: the chart's first, then users' own in order of appearance."""

    def __init__(self, names: Sequence[str] = NAMES) -> None:
        self.names = list(names)
        self._ids = {name: i for i, name in enumerate(self.names)}

    def id(self, name: str) -> int:
        """The number of `name`, given on first sight."""
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = len(self.names)
            self.names.append(name)
        return found


assert AccountTable().id("effective") == INDEX["effective"] == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Spans and steps in the order they were recorded.

    `account` is STEP for steps. A step row stands for `count` consecutive steps from `index`;
    where count > 1, t0…t1 is their net time laid out in one piece, and least, median and most
    are the true durations (seconds) of the steps it was folded from.
    """

    attempt: npt.NDArray[np.int32]
    rank: npt.NDArray[np.int32]
    account: npt.NDArray[np.int16]
    background: Bools
    index: Ints
    count: npt.NDArray[np.int32]
    t0_ns: Ints
    t1_ns: Ints
    least: Floats
    median: Floats
    most: Floats

    def __len__(self) -> int:
        return len(self.t0_ns)

    def take(self, which: Bools | Ints | slice) -> "Rows":
        """The rows at `which` (a mask, positions or a slice)."""
        return Rows(**{f.name: getattr(self, f.name)[which] for f in fields(self)})

    def shifted(self, offset_ns: int) -> "Rows":
        """The same rows, `offset_ns` later."""
        if not offset_ns:
            return self
        return replace(self, t0_ns=self.t0_ns + offset_ns, t1_ns=self.t1_ns + offset_ns)

    @property
    def is_step(self) -> Bools:
        return np.asarray(self.account == STEP)

    @staticmethod
    def of(
        *,
        attempt: npt.ArrayLike,
        rank: npt.ArrayLike,
        account: npt.ArrayLike,
        t0_ns: npt.ArrayLike,
        t1_ns: npt.ArrayLike,
        index: npt.ArrayLike = 0,
        count: npt.ArrayLike = 1,
        background: npt.ArrayLike = False,
        least: npt.ArrayLike | None = None,
        median: npt.ArrayLike | None = None,
        most: npt.ArrayLike | None = None,
    ) -> "Rows":
        """Rows from columns; a scalar stands for the whole column."""
        t0 = np.asarray(t0_ns, dtype=np.int64)
        t1 = np.asarray(t1_ns, dtype=np.int64)
        size = len(t0)
        plain: Floats | None = None
        if least is None or median is None or most is None:
            plain = ((t1 - t0) * 1e-9).astype(np.float32)

        def column(value: npt.ArrayLike | None, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
            if value is None:
                assert plain is not None
                return plain
            array = np.asarray(value, dtype=dtype)
            return np.broadcast_to(array, (size,)) if array.ndim == 0 else array

        return Rows(
            attempt=column(attempt, np.int32),  # type: ignore[arg-type]
            rank=column(rank, np.int32),  # type: ignore[arg-type]
            account=column(account, np.int16),  # type: ignore[arg-type]
            background=column(background, np.bool_),  # type: ignore[arg-type]
            index=column(index, np.int64),  # type: ignore[arg-type]
            count=column(count, np.int32),  # type: ignore[arg-type]
            t0_ns=t0,
            t1_ns=t1,
            least=column(least, np.float32),  # type: ignore[arg-type]
            median=column(median, np.float32),  # type: ignore[arg-type]
            most=column(most, np.float32),  # type: ignore[arg-type]
        )

    @staticmethod
    @cache
    def none() -> "Rows":
        return Rows.of(attempt=[], rank=[], account=[], t0_ns=[], t1_ns=[], index=[], count=[])

    @staticmethod
    def joined(parts: Sequence["Rows"]) -> "Rows":
        """All rows of `parts`, in that order."""
        kept = [part for part in parts if len(part)]
        if len(kept) <= 1:
            return kept[0] if kept else Rows.none()
        names = [f.name for f in fields(Rows)]
        return Rows(**{n: np.concatenate([getattr(p, n) for p in kept]) for n in names})

    @staticmethod
    def from_values(values: Iterable[Span | Step], accounts: AccountTable) -> "Rows":
        """Rows from values: how tests and small callers write a history by hand."""
        items = list(values)
        return Rows.of(
            attempt=[v.attempt for v in items],
            rank=[v.rank for v in items],
            account=[STEP if isinstance(v, Step) else accounts.id(v.account) for v in items],
            background=[isinstance(v, Span) and v.background for v in items],
            index=[v.index if isinstance(v, Step) else 0 for v in items],
            count=[v.count if isinstance(v, Step) else 1 for v in items],
            t0_ns=[v.t0_ns for v in items],
            t1_ns=[v.t1_ns for v in items],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What is new since a job was last read."""

    rows: Rows
    checkpoints: tuple[Checkpoint, ...] = ()
