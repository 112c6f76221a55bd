"""A table of steps (CSV with a header): a column of times and one of step numbers.

    t,iter                           Wall time,Step,Value            _step,_timestamp,loss
    2024-04-29 06:18:02.707,1        1714371482.7,1,2.31             1,1714371482.7,2.31

Each row says that a step was over. A step number that goes back is a new attempt.
"""

import csv
import math
from collections.abc import Iterable, Sequence
from typing import NoReturn

from torchett.ledger.history import History
from torchett.model.errors import InputError
from torchett.runs.importers.builder import AttemptDraft, HistoryBuilder, UserHints
from torchett.runs.importers.stamps import stamp
from torchett.runs.importers.ticks import Tick, pace, runs, stalled_s

_TIMES = (
    "t",
    "time",
    "timestamp",
    "_timestamp",
    "wall time",
    "wall_time",
    "ts",
    "date",
    "datetime",
)
_STEPS = ("iter", "iteration", "step", "_step", "global_step", "steps", "train/global_step")


def parse(
    lines: Iterable[str],
    name: str,
    job: str,
    hints: UserHints,
    *,
    time: str | None = None,
    step: str | None = None,
) -> History:
    """The history in a table; `time` and `step` name its columns where they are not the usual."""
    table = csv.reader(lines)

    def refuse(expected: str) -> NoReturn:
        raise InputError(f"{name}:{max(table.line_num, 1)}: {expected}")

    try:
        header = [cell.strip() for cell in next(table, [])]
    except csv.Error as error:
        refuse(f"expected CSV: {error}")
    at_time = _column(header, time, _TIMES)
    at_step = _column(header, step, _STEPS)
    if at_time is None or at_step is None:
        missing, option = ("times", "--time") if at_time is None else ("step numbers", "--step")
        refuse(
            f"expected a header with a column of {missing} (name it with {option}),"
            f" found {', '.join(header)[:60] or 'nothing'}"
        )
    attempts: list[list[Tick]] = []
    repeated = 0
    try:
        for row in table:
            if not any(cell.strip() for cell in row):
                continue
            if len(row) <= max(at_time, at_step):
                refuse(f"expected {len(header)} cells, found {len(row)}")
            t_s, index = _time(row[at_time]), _index(row[at_step])
            if t_s is None:
                refuse(f"expected a time, found '{row[at_time][:40]}'")
            if index is None:
                refuse(f"expected a step number, found '{row[at_step][:40]}'")
            tick = Tick(index, t_s)
            last = attempts[-1][-1] if attempts else None
            if last is not None and tick.t_s < last.t_s:
                refuse(f"expected times that do not go back, found {row[at_time]}")
            if last is not None and tick.index == last.index:
                repeated += 1
            elif last is None or tick.index < last.index:
                attempts.append([tick])
            else:
                attempts[-1].append(tick)
    except csv.Error as error:
        refuse(f"expected CSV: {error}")
    if not attempts:
        refuse("expected rows of steps, found none")
    return _history(attempts, job, name, hints, repeated)


def _history(
    attempts: Sequence[Sequence[Tick]], job: str, name: str, hints: UserHints, repeated: int
) -> History:
    builder = HistoryBuilder(job, name)
    usual = pace(attempts)
    stalls, over_s = 0, 0.0
    for ticks in attempts:
        builder.attempts.append(AttemptDraft(start_s=ticks[0].t_s))
        found = runs(ticks, usual, stall=hints.stall)
        for run in found:
            builder.step(0, run.index, run.t0_s, run.t1_s, run.count)
        gaps, seconds = stalled_s(ticks, found)
        stalls, over_s = stalls + gaps, over_s + seconds
    builder.apply(hints)
    builder.notes.append(
        "each row is the end of a step: when an attempt's first began is not known"
    )
    if stalls:
        builder.notes.append(
            f"steps of more than {hints.stall:g} × the usual {usual.step_s:.3f} s: {stalls}; what"
            f" was over, {over_s:.1f} s, is other_in_loop"
        )
    if repeated:
        builder.notes.append(f"rows that repeat the step before them: {repeated}, left out")
    return builder.history(hints.ranks)


def _column(header: Sequence[str], asked: str | None, usual: Sequence[str]) -> int | None:
    if asked is not None:
        return header.index(asked) if asked in header else None
    lowered = [cell.lower() for cell in header]
    return next((lowered.index(word) for word in usual if word in lowered), None)


def _time(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return stamp(text)
    return number if math.isfinite(number) else None


def _index(text: str) -> int | None:
    try:
        number = float(text)
        return int(number) if number == int(number) and 0 <= number < 1 << 62 else None
    except (ValueError, OverflowError):
        return None
