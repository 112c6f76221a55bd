"""Rule 4's Time to Recover in stages: what happened between the last progress and the next.

    attempt 0  ███ ✗ detect ┄┐                         the rank that makes progress first
    attempt 1                └ stop │ rendezvous │ imports │ restore │ compile │ first step ███
                                                                               └ not part of it

Each nanosecond of the wait is in one stage; the stages sum to the entry of `time_to_recover_ns`.
Beside each recovery stands the one before it, else the job's first start.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np

from torchett.ledger.history import History
from torchett.ledger.ledger import AttemptLedger, Ledger
from torchett.ledger.timeline import Timeline, timeline
from torchett.model.accounts import INDEX

STAGES: Final = (
    "detect", "stop", "schedule", "failed_starts", "rendezvous", "imports", "set_up", "restore",
    "compile", "other",
)  # fmt: skip
_ACCOUNTS: Final = {
    "restart_gap": "stop",
    "scheduling": "schedule",
    "hardware_setup": "schedule",
    "launcher_init": "rendezvous",
    "process_group_init": "rendezvous",
    "regroup": "rendezvous",
    "imports": "imports",
    "device_init": "imports",
    "preproc_creation": "set_up",
    "train_module_creation": "set_up",
    "init_plugins": "set_up",
    "pre_train": "set_up",
    "get_first_batch_data": "set_up",
    "checkpoint_restore": "restore",
    "pt2_compile": "compile",
}
_TRAINING: Final = (INDEX["effective"], INDEX["unsaved"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One way back to training: its stages in nanoseconds, those without time left out."""

    failed: int | None  # the attempt that had the progress before; None: this is the first start
    resumed: int
    rank: int  # which made progress first
    stages: dict[str, int]
    first_step_ns: int  # its training, after the recovery

    @property
    def total_ns(self) -> int:
        return sum(self.stages.values())

    @property
    def slowest(self) -> str | None:
        return max(self.stages, key=lambda stage: self.stages[stage], default=None)

    def to_json(self, before: "Recovery | None") -> dict[str, Any]:
        shown: dict[str, Any] = {
            "failed_attempt": self.failed,
            "attempt": self.resumed,
            "rank": self.rank,
            "total_s": self.total_ns / 1e9,
            "slowest": self.slowest,
            "stages": {stage: ns / 1e9 for stage, ns in self.stages.items()},
            "first_step_s": self.first_step_ns / 1e9,
        }
        if before is not None:
            shown["before"] = {stage: ns / 1e9 for stage, ns in before.stages.items()}
        return shown


def recoveries(ledger: Ledger, history: History) -> list[Recovery]:
    """The job's first start, then every recovery, in order; empty without any progress."""
    moving = [i for i, attempt in enumerate(ledger.attempts) if attempt.progress_ns is not None]
    if not moving:
        return []
    firsts = {i: _FirstStep.of(ledger.attempts[i], history) for i in moving}
    segments = timeline(ledger, history, sorted({first.rank for first in firsts.values()}))
    found = [_start(ledger, moving[0], firsts[moving[0]], segments)]
    for earlier, later in pairwise(moving):
        found.append(_recovery(ledger.attempts, earlier, later, firsts[later], segments))
    return found


def _start(ledger: Ledger, at: int, first: "_FirstStep", segments: Timeline) -> Recovery:
    stages = dict.fromkeys(STAGES, 0)
    attempt = ledger.attempts[at]
    stages["failed_starts"] = attempt.tenure.lo_ns - ledger.window.start_ns
    step_ns = _add(stages, attempt, first, segments)
    return _of(None, attempt, first, stages, step_ns)


def _recovery(
    attempts: Sequence[AttemptLedger],
    earlier: int,
    later: int,
    first: "_FirstStep",
    segments: Timeline,
) -> Recovery:
    """From the last step's end in one attempt to the progress of a later one."""
    stages = dict.fromkeys(STAGES, 0)
    before, after = attempts[earlier], attempts[later]
    assert before.last_end_ns is not None
    stages["detect"] = before.tenure.hi_ns - before.last_end_ns
    for i in range(earlier + 1, later + 1):
        tenure = attempts[i].tenure
        stages["schedule"] += tenure.lo_ns - attempts[i - 1].tenure.hi_ns
        if i < later:
            stages["failed_starts"] += tenure.hi_ns - tenure.lo_ns
    step_ns = _add(stages, after, first, segments)
    return _of(before.tenure.attempt.number, after, first, stages, step_ns)


def _of(
    failed: int | None,
    attempt: AttemptLedger,
    first: "_FirstStep",
    stages: dict[str, int],
    step_ns: int,
) -> Recovery:
    return Recovery(
        failed=failed,
        resumed=attempt.tenure.attempt.number,
        rank=first.rank,
        stages={stage: stages[stage] for stage in STAGES if stages[stage]},
        first_step_ns=step_ns,
    )


def _add(
    stages: dict[str, int], attempt: AttemptLedger, first: "_FirstStep", segments: Timeline
) -> int:
    """Add one attempt's way to the end of its first step; how long that step trained."""
    number = attempt.tenure.attempt.number
    mine = segments.take(
        (segments.attempt == number)
        & (segments.rank == first.rank)
        & (segments.t0_ns < first.end_ns)
    )
    lengths = np.minimum(mine.t1_ns, first.end_ns) - mine.t0_ns
    trains = np.isin(mine.account, _TRAINING)
    for account, length in zip(mine.account[~trains], lengths[~trains], strict=True):
        stages[_ACCOUNTS.get(mine.names[int(account)], "other")] += int(length)
    return int(lengths[trains].sum()) // first.count


@dataclass(frozen=True, slots=True, kw_only=True)
class _FirstStep:
    """The first step of the rank whose first step ends first (the lower rank of two)."""

    rank: int
    end_ns: int
    count: int  # steps that the record folded into one row

    @classmethod
    def of(cls, attempt: AttemptLedger, history: History) -> Self:
        rows = history.rows
        steps = rows.take(rows.is_step & (rows.attempt == attempt.tenure.attempt.number))
        order = np.lexsort((steps.index, steps.t0_ns, steps.rank))
        _, firsts = np.unique(steps.rank[order], return_index=True)
        rows_of_firsts = order[firsts]
        row = rows_of_firsts[int(np.argmin(steps.t1_ns[rows_of_firsts]))]
        end_ns = min(int(steps.t1_ns[row]), attempt.tenure.hi_ns)
        return cls(rank=int(steps.rank[row]), end_ns=end_ns, count=int(steps.count[row]))
