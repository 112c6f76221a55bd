"""What saving cost a job: how long a save blocked, when it was durable, how often it was done.

    rank 0  ▒step 9▒│▚▚▚▚│▒step 10▒│▒step 11▒ …        ▚ checkpoint_blocked
    rank 1  ▒step 9▒ │▚▚▚▚▚│▒step 10▒│▒step 11▒ …
                     ├──B──┤──────── L ───────┤ checkpoint of step 9 is durable
                           ├──────────── T ──────────── … the next save begins

A blocked span belongs to the checkpoint whose step had begun last; what comes before the first, or
after the last was durable, is a save that never was. In its first step a trainer has nothing to
save yet: what blocks it there makes a checkpointer ready, unless that step becomes durable. The
save of a loop that is over (final_checkpoint) tells neither how long one blocks nor how often.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.ledger.rows import Bools, Ints, Rows
from torchett.ledger.rules.window import Tenure
from torchett.model.accounts import INDEX
from torchett.model.values import Checkpoint

_BLOCKED, _FINAL = INDEX["checkpoint_blocked"], INDEX["final_checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCosts:
    """Mean seconds; None if nothing was recorded."""

    saves: int
    blocking_saves: int  # of these, those that were seen to block the loop
    blocking_s: float | None  # of all ranks the longest
    upload_s: float | None  # no longer blocked → durable
    interval_s: float | None  # from the end of a save to the begin of the next
    recover_s: float | None
    failures: int  # without notice: preemptions and the user's own cancelling are none
    exposure_s: float  # time under way, in which they happened
    blocked_share: float  # of all rank-seconds
    unsaved_share: float


def measure_saves(history: History, ledger: Ledger) -> SaveCosts:
    """The cost of saves and failures of a recorded job."""
    rows = history.rows
    blocked = rows.take((rows.account == _BLOCKED) & ~rows.background)
    blocking: list[float | None] = []
    lags: list[float] = []
    gaps: list[float] = []
    for tenure in ledger.window.tenures:
        number = tenure.attempt.number
        durable = _first_durable([c for c in history.checkpoints if c.attempt == number])
        spans = blocked.take(blocked.attempt == number)
        if not durable and not len(spans):
            continue
        steps = rows.take((rows.attempt == number) & rows.is_step)
        finals = rows.t0_ns[(rows.attempt == number) & (rows.account == _FINAL)]
        found = _attempt(spans, steps, durable, int(finals.min()) if len(finals) else None)
        blocking += found[0]
        lags += found[1]
        gaps += found[2]
    known = [seconds for seconds in blocking if seconds is not None]
    recover = ledger.time_to_recover_ns
    whole = ledger.rank_ns or 1
    return SaveCosts(
        saves=len(blocking),
        blocking_saves=len(known),
        blocking_s=_mean(known),
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
    spans: Rows, steps: Rows, durable: list[tuple[int, int]], final_ns: int | None
) -> tuple[list[float | None], list[float], list[float]]:
    """Of one attempt: blocking of each save, lag of each checkpoint, gaps between saves."""
    times = [_step_times(steps, step) for step, _ in durable]
    begins = np.array([begin for begin, _ in times], dtype=np.int64)
    save = np.searchsorted(begins, spans.t0_ns, side="right") - 1
    if durable:
        save[(save == len(durable) - 1) & (spans.t0_ns > durable[-1][1])] = len(durable)
    counts = (save >= 0) | ~_before_second_step(spans, steps)
    spans, save = spans.take(counts), save[counts]
    blocking: list[float | None] = []
    lags: list[float] = []
    windows: list[tuple[int, int]] = []
    for which in range(-1, len(durable) + 1):
        mine = spans.take(save == which)
        is_durable = 0 <= which < len(durable)
        if not len(mine) and not is_durable:
            continue
        blocking.append(_longest(mine) / 1e9 if len(mine) else None)
        end_ns = int(mine.t1_ns.max()) if len(mine) else times[which][1]
        if is_durable:
            lags.append(max(0, durable[which][1] - end_ns) / 1e9)
        if len(mine):
            windows.append((int(mine.t0_ns.min()), end_ns))
        elif final_ns is None or durable[which][1] < final_ns:
            windows.append((end_ns, end_ns))
    gaps = [
        (later[0] - earlier[1]) / 1e9
        for earlier, later in pairwise(windows)
        if later[0] > earlier[1]
    ]
    return blocking, lags, gaps


def _before_second_step(spans: Rows, steps: Rows) -> Bools:
    """Which spans begin before their rank has begun two steps."""
    runs = steps.take(steps.count > 1)
    inside = runs.t0_ns + (runs.t1_ns - runs.t0_ns) // runs.count
    ranks, begins = np.append(steps.rank, runs.rank), np.append(steps.t0_ns, inside)
    order = np.lexsort((begins, ranks))
    ranks, begins = ranks[order], begins[order]
    second = np.searchsorted(ranks, spans.rank) + 1
    has_two = second < np.searchsorted(ranks, spans.rank, side="right")
    early = np.ones(len(spans), dtype=np.bool_)
    early[has_two] = spans.t0_ns[has_two] < begins[second[has_two]]
    return early


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
    return int(np.bincount(spans.rank, weights=spans.t1_ns - spans.t0_ns).max())


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
