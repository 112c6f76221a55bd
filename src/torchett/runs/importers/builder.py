"""Builds a history: what an importer has read so far, in seconds since the epoch."""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from torchett.ledger.history import History
from torchett.ledger.rows import STEP, AccountTable, Rows
from torchett.model.causes import Outcome
from torchett.model.errors import InputError
from torchett.model.values import Attempt, Checkpoint, Job
from torchett.runs.importers.ticks import STALL

_LONGEST_S = float(1 << 62) / 1e9
_MOST_STEPS = (1 << 31) - 1  # in one row


@dataclass(slots=True, kw_only=True)
class AttemptDraft:
    """One attempt as far as it is known; without an outcome it has no end either."""

    start_s: float
    ranks: int | None = None
    end_s: float | None = None
    outcome: Outcome | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserHints:
    """The user's options beside the file: when the job began and ended, how, on how many ranks."""

    began_s: float | None = None
    ended_s: float | None = None
    outcome: Outcome | None = None
    ranks: int = 1
    stall: float = STALL


@dataclass(slots=True)
class HistoryBuilder:
    """Attempts, rows and checkpoints of one job, to be made a history once all is read."""

    job: str
    name: str  # of the file, for what is wrong with it
    attempts: list[AttemptDraft] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _rows: list[tuple[int, int, str, int, int, float, float]] = field(default_factory=list)
    _saved: list[tuple[int, int, float]] = field(default_factory=list)

    def span(self, rank: int, account: str, t0_s: float, t1_s: float, attempt: int = -1) -> None:
        """A foreground span of an attempt (the last one, unless `attempt` is given)."""
        if t1_s > t0_s:
            self._rows.append((self._number(attempt), rank, account, 0, 1, t0_s, t1_s))

    def step(
        self, rank: int, index: int, t0_s: float, t1_s: float, count: int = 1, attempt: int = -1
    ) -> None:
        """`count` steps from `index`, executed in t0…t1."""
        if count > _MOST_STEPS:
            raise InputError(
                f"{self.name}: expected steps that follow each other, found step"
                f" {index + count - 1} {count} after the one before it"
            )
        self._rows.append((self._number(attempt), rank, "", index, count, t0_s, max(t0_s, t1_s)))

    def saved(self, step: int, durable_s: float, attempt: int = -1) -> None:
        """A checkpoint of `step` was safe at that time."""
        self._saved.append((self._number(attempt), step, durable_s))

    def apply(self, hints: UserHints) -> None:
        """Apply the user's options on when the first attempt began and how the last one ended."""
        if not self.attempts:
            return
        first, last = self.attempts[0], self.attempts[-1]
        if hints.began_s is not None:
            if hints.began_s > self._earliest():
                raise InputError(
                    f"{self.name}: expected the job to begin before its first line, found"
                    f" {hints.began_s - self._earliest():.3f} s after it"
                )
            first.start_s = hints.began_s
        if hints.ended_s is not None and hints.ended_s < self.latest_s():
            raise InputError(
                f"{self.name}: expected the job to end after its last line, found"
                f" {self.latest_s() - hints.ended_s:.3f} s before it"
            )
        if hints.ended_s is not None or hints.outcome is not None:
            last.end_s = hints.ended_s or last.end_s or self.latest_s()
            last.outcome = hints.outcome or last.outcome or "success"

    def latest_s(self, attempt: int = -1) -> float:
        """The greatest time in the attempt's events so far."""
        number = self._number(attempt)
        seen = [row[6] for row in self._rows if row[0] == number]
        seen += [saved[2] for saved in self._saved if saved[0] == number]
        return max([*seen, self.attempts[number].start_s])

    def history(self, ranks: int = 1) -> History:
        """The history; a file that stands for several ranks gives each of them the same rows."""
        self._put_in_order()
        epoch = self._earliest()
        seen = [given.end_s or given.start_s for given in self.attempts]
        seen += [row[6] for row in self._rows] + [saved[2] for saved in self._saved]
        if not max(seen, default=epoch) - epoch < _LONGEST_S:
            raise InputError(f"{self.name}: expected times less than 146 years apart")

        def ns(t_s: float) -> int:
            return round((t_s - epoch) * 1e9)

        accounts = AccountTable()
        widest = max([ranks, *(given.ranks or 1 for given in self.attempts)])
        copies = ranks if all(given.ranks is None for given in self.attempts) else 1
        rows = Rows.of(
            attempt=[row[0] for row in self._rows],
            rank=[row[1] for row in self._rows],
            account=[accounts.id(row[2]) if row[2] else STEP for row in self._rows],
            index=[row[3] for row in self._rows],
            count=[row[4] for row in self._rows],
            t0_ns=[ns(row[5]) for row in self._rows],
            t1_ns=[ns(row[6]) for row in self._rows],
            **_per_step(self._rows),
        )
        if copies > 1:
            rows = _for_ranks(rows, copies)
        return History(
            job=Job(
                name=self.job,
                ranks=widest,
                attempts=tuple(
                    Attempt(
                        number=number,
                        start_ns=ns(given.start_s),
                        ranks=given.ranks or widest,
                        end_ns=None if given.end_s is None else ns(given.end_s),
                        outcome=None if given.end_s is None else given.outcome,
                        cause=given.cause,
                    )
                    for number, given in enumerate(self.attempts)
                ),
            ),
            rows=rows,
            accounts=accounts,
            checkpoints=tuple(
                Checkpoint(attempt=attempt, step=step, durable_ns=ns(t_s))
                for attempt, step, t_s in self._saved
            ),
            epoch_s=epoch,
            notes=tuple(self.notes),
        )

    def _number(self, attempt: int) -> int:
        return attempt if attempt >= 0 else len(self.attempts) + attempt

    def _earliest(self) -> float:
        seen = [given.start_s for given in self.attempts]
        seen += [row[5] for row in self._rows] + [saved[2] for saved in self._saved]
        return min(seen, default=0.0)

    def _put_in_order(self) -> None:
        """Attempts follow each other: an end that lies after the next start is cut there."""
        for number, (given, after) in enumerate(pairwise(self.attempts)):
            if given.end_s is not None and given.end_s > after.start_s:
                self.notes.append(
                    f"attempt {number} ended {given.end_s - after.start_s:.3f} s after attempt"
                    f" {number + 1} began: its end was moved there"
                )
                given.end_s = max(after.start_s, given.start_s)


def _per_step(rows: list[tuple[int, int, str, int, int, float, float]]) -> dict[str, list[float]]:
    """The duration of one step, where a row stands for several."""
    each = [(row[6] - row[5]) / row[4] for row in rows]
    return {"least": each, "median": each, "most": each}


def _for_ranks(rows: Rows, ranks: int) -> Rows:
    size = len(rows)
    spread = rows.take(np.tile(np.arange(size), ranks))
    return replace(spread, rank=np.repeat(np.arange(ranks, dtype=np.int32), size))
