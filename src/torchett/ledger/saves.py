"""What saving cost a job: how long a save blocked, when it was durable, how often it was done.

    rank 0  ▒step 9▒│▚▚▚▚│▒step 10▒│▒step 11▒ …        ▚ checkpoint_blocked
    rank 1  ▒step 9▒ │▚▚▚▚▚│▒step 10▒│▒step 11▒ …
                     ├──B──┤──────── L ───────┤ checkpoint of step 9 is durable
                           ├──────────── T ──────────── … the next save begins

A blocked span belongs to the checkpoint whose step had begun last; what comes after the last
checkpoint was durable is a save that never was.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.ledger.rows import Ints, Rows
from torchett.ledger.window import Tenure
from torchett.model.accounts import INDEX
from torchett.model.values import Checkpoint

_BLOCKED = INDEX["checkpoint_blocked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """Seconds, on average; None where nothing was recorded that would tell."""

    saves: int
    blocking_s: float | None  # of all ranks the longest
    upload_s: float | None  # no longer blocked → durable
    interval_s: float | None  # from the end of a save to the begin of the next
    recover_s: float | None
    failures: int  # without notice: preemptions and the user's own cancelling are none
    exposure_s: float  # time under way, in which they happened
    blocked_share: float  # of all rank-seconds
    unsaved_share: float


def measure_saves(history: History, ledger: Ledger) -> Saves:
    """What a recorded job says about its saves and failures."""
    blocked = history.rows.take((history.rows.account == _BLOCKED) & ~history.rows.background)
    blocking: list[float] = []
    lags: list[float] = []
    gaps: list[float] = []
    for tenure in ledger.window.tenures:
        number = tenure.attempt.number
        durable = _first_durable([c for c in history.checkpoints if c.attempt == number])
        spans = blocked.take(blocked.attempt == number)
        if not durable and not len(spans):
            continue
        steps = history.rows.take((history.rows.attempt == number) & history.rows.is_step)
        found = _attempt(spans, steps, durable)
        blocking += found[0]
        lags += found[1]
        gaps += found[2]
    recover = ledger.time_to_recover_ns
    whole = ledger.rank_ns or 1
    return Saves(
        saves=len(blocking),
        blocking_s=_mean(blocking) if len(blocked) else None,
        upload_s=_mean(lags),
        interval_s=_mean(gaps),
        recover_s=sum(recover) / len(recover) / 1e9 if recover else None,
        failures=sum(_is_failure(tenure) for tenure in ledger.window.tenures),
        exposure_s=sum(t.hi_ns - t.start_ns for t in ledger.window.tenures) / 1e9,
        blocked_share=ledger.accounts.get("checkpoint_blocked", 0) / whole,
        unsaved_share=ledger.accounts.get("unsaved", 0) / whole,
    )


def _is_failure(tenure: Tenure) -> bool:
    noticed = tenure.state == "preempted" or tenure.attempt.cause == "user_cancel"
    return tenure.failed and not noticed


def _first_durable(checkpoints: list[Checkpoint]) -> list[tuple[int, int]]:
    """Step and time of each checkpoint, in order of steps; the first word on each counts."""
    first: dict[int, int] = {}
    for checkpoint in checkpoints:
        known = first.get(checkpoint.step, checkpoint.durable_ns)
        first[checkpoint.step] = min(known, checkpoint.durable_ns)
    return sorted(first.items())


def _attempt(
    spans: Rows, steps: Rows, durable: list[tuple[int, int]]
) -> tuple[list[float], list[float], list[float]]:
    """Of one attempt: blocking of each save, lag of each checkpoint, gaps between saves."""
    times = [_step_times(steps, step) for step, _ in durable]
    begins = np.array([begin for begin, _ in times], dtype=np.int64)
    save = np.searchsorted(begins, spans.t0_ns, side="right") - 1
    if durable:
        save[(save == len(durable) - 1) & (spans.t0_ns > durable[-1][1])] = len(durable)
    blocking: list[float] = []
    lags: list[float] = []
    windows: list[tuple[int, int]] = []
    for which in range(-1, len(durable) + 1):
        mine = spans.take(save == which)
        is_durable = 0 <= which < len(durable)
        if not len(mine) and not is_durable:
            continue
        blocking.append(_longest(mine) / 1e9)
        if len(mine):
            windows.append((int(mine.t0_ns.min()), int(mine.t1_ns.max())))
        else:
            windows.append((times[which][1], times[which][1]))
        if is_durable:
            lags.append(max(0, durable[which][1] - windows[-1][1]) / 1e9)
    gaps = [
        (later[0] - earlier[1]) / 1e9
        for earlier, later in pairwise(windows)
        if later[0] > earlier[1]
    ]
    return blocking, lags, gaps


def _step_times(steps: Rows, step: int) -> tuple[int, int]:
    """When a step began on its first rank and ended on its last; in a run of steps, by its share.

    Of a step that was not recorded: when the last one before it ended.
    """
    inside = steps.take((steps.index <= step) & (step < steps.index + steps.count))
    if not len(inside):
        before = steps.t1_ns[steps.index <= step]
        end = int(before.max()) if len(before) else 0
        return end, end
    took: Ints = inside.t1_ns - inside.t0_ns
    begin = inside.t0_ns + took * (step - inside.index) // inside.count
    end_ns = inside.t0_ns + took * (step + 1 - inside.index) // inside.count
    return int(begin.min()), int(end_ns.max())


def _longest(spans: Rows) -> int:
    """Nanoseconds blocked on the rank that was blocked longest."""
    if not len(spans):
        return 0
    return int(np.bincount(spans.rank, weights=spans.t1_ns - spans.t0_ns).max())


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
