"""`ett.load(RUN)`: a run as Arrow tables, for pandas, Polars and DuckDB.

run = ett.load("gpt-4711")
run.ledger.ett_percent                        71.3
run.accounts                                  one row per attempt, group and account
run.attempts, run.losses                      one row each
run.spans(), run.steps()                      what was recorded, one row per span or step
run.timeline()                                the seconds of every rank, as they were settled

Each table is a `pyarrow.Table`: `.to_pandas()`, `polars.from_arrow(table)`, or in DuckDB by name.
"""

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchett.ledger.history import History
from torchett.ledger.ledger import AttemptLedger, Ledger
from torchett.ledger.metrics.losses import failure_costs
from torchett.ledger.timeline import timeline
from torchett.model.accounts import GROUPS
from torchett.model.errors import InputError
from torchett.runs.folder import find_run
from torchett.runs.reader import RunReader

if TYPE_CHECKING:
    from pyarrow import Table


class Run:
    """A run that has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        reader = RunReader(path).poll()
        self.ledger: Ledger = reader.ledger()
        self._history: History = reader.history()

    def __repr__(self) -> str:
        return f"<torchett run {self.ledger.job!r}: {self.ledger.ett_percent:.1f}% effective>"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader corrected or could not read."""
        return self._history.notes

    @property
    def epoch_s(self) -> float:
        """The time that t = 0 of every table stands for, in seconds since the epoch."""
        return self._history.epoch_s

    @cached_property
    def attempts(self) -> "Table":
        """One row per attempt: its window, how it ended, its steps and its seconds by group."""
        return _table([_attempt_row(attempt) for attempt in self.ledger.attempts])

    @cached_property
    def accounts(self) -> "Table":
        """Rank-seconds by attempt, group and account; they sum to the ledger's rank-seconds."""
        return _table(
            [
                {
                    "attempt": attempt.tenure.attempt.number,
                    "group": group,
                    "account": account,
                    "seconds": ns / 1e9,
                }
                for attempt in self.ledger.attempts
                for group, accounts in attempt.tree.items()
                for account, ns in accounts.items()
                if ns
            ]
        )

    @cached_property
    def losses(self) -> "Table":
        """One row per failure: its cause, and the rank-seconds it cost by kind."""
        return _table(
            [
                {
                    "attempt": cost.attempt,
                    "cause": cost.cause or cost.state,
                    "domain": cost.domain,
                    "detect_s": cost.detect_ns / 1e9,
                    "restart_gap_s": cost.restart_gap_ns / 1e9,
                    "start_again_s": cost.start_again_ns / 1e9,
                    "unsaved_s": cost.unsaved_ns / 1e9,
                    "total_s": cost.total_ns / 1e9,
                    "first_lost_step": cost.lost_steps[0] if cost.lost_steps else None,
                    "last_lost_step": cost.lost_steps[1] if cost.lost_steps else None,
                }
                for cost in failure_costs(self.ledger)
            ]
        )

    def spans(self) -> "Table":
        """The spans that were recorded: attempt, rank, account, t0_ns, t1_ns, background."""
        rows = self._history.rows
        rows = rows.take(~rows.is_step)
        names = np.array(self._history.accounts.names, dtype=object)
        return _columns(
            attempt=rows.attempt,
            rank=rows.rank,
            account=names[rows.account],
            t0_ns=rows.t0_ns,
            t1_ns=rows.t1_ns,
            background=rows.background,
        )

    def steps(self) -> "Table":
        """The steps that were recorded; a row with count > 1 stands for that many in a row."""
        rows = self._history.rows
        rows = rows.take(rows.is_step)
        return _columns(
            attempt=rows.attempt,
            rank=rows.rank,
            step=rows.index,
            count=rows.count,
            t0_ns=rows.t0_ns,
            t1_ns=rows.t1_ns,
            median_s=rows.median,
        )

    def timeline(self) -> "Table":
        """Every second of every rank under its one account; `step` is −1 where it is none."""
        found = timeline(self.ledger, self._history)
        return _columns(
            attempt=found.attempt,
            rank=found.rank,
            account=np.array(found.names, dtype=object)[found.account],
            group=np.array(GROUPS, dtype=object)[found.group],
            t0_ns=found.t0_ns,
            t1_ns=found.t1_ns,
            step=found.step,
        )


def load(run: str | os.PathLike[str]) -> Run:
    """The run of this name, or at this path."""
    return Run(find_run(os.fspath(run)))


def _attempt_row(attempt: AttemptLedger) -> dict[str, Any]:
    tenure = attempt.tenure
    groups = attempt.groups
    return {
        "attempt": tenure.attempt.number,
        "ranks": tenure.attempt.ranks,
        "t0_ns": tenure.lo_ns,
        "t1_ns": tenure.hi_ns,
        "state": tenure.state,
        "cause": tenure.attempt.cause,
        "domain": attempt.domain,
        "first_step": attempt.first_step,
        **{f"{group}_s": groups[group] / 1e9 for group in GROUPS},
    }


def _table(rows: list[dict[str, Any]]) -> "Table":
    return _pyarrow().Table.from_pylist(rows)


def _columns(**columns: Any) -> "Table":
    arrow = _pyarrow()
    return arrow.table({name: arrow.array(values) for name, values in columns.items()})


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise InputError(
            "ett.load: tables need pyarrow, which is not installed: pip install pyarrow"
        ) from None
    return pyarrow
