"""A history written as events/1: `reader.py` shows what that looks like."""

import json
from collections.abc import Iterator
from typing import Any

from torchett.ledger.history import History
from torchett.ledger.rows import STEP
from torchett.model.accounts import is_recordable

FORMAT = "events/1"


def write(history: History) -> Iterator[str]:
    """The lines of an events/1 file that settles to the same ledger.

    A run of folded steps is written out as steps of equal length; spans that only the ledger may
    book (a hole in a damaged record) are left out. t = 0 is the earliest time of the history.
    """
    job, rows = history.job, history.rows
    given = [
        t for a in job.attempts for t in (a.submitted_ns, a.allocated_ns, a.start_ns, a.end_ns)
    ]
    given += [checkpoint.durable_ns for checkpoint in history.checkpoints]
    given += [history.now_ns, int(rows.t0_ns.min()) if len(rows) else None]
    zero = min((t for t in given if t is not None), default=0)
    line = _Lines(zero)
    epoch = history.epoch_s + zero / 1e9
    yield line(event="job", format=FORMAT, job=job.name, ranks=job.ranks, epoch=epoch)
    for attempt in job.attempts:
        yield line(
            event="attempt_start",
            attempt=attempt.number,
            t=attempt.start_ns,
            submitted=attempt.submitted_ns,
            allocated=attempt.allocated_ns,
            ranks=attempt.ranks if attempt.ranks != job.ranks else None,
            resumed_from=attempt.resumed_from,
        )
    yield from _row_lines(history, line)
    for checkpoint in history.checkpoints:
        yield line(
            event="checkpoint",
            attempt=checkpoint.attempt,
            step=checkpoint.step,
            durable=checkpoint.durable_ns,
        )
    for attempt in job.attempts:
        if attempt.end_ns is not None:
            yield line(
                event="attempt_end",
                attempt=attempt.number,
                t=attempt.end_ns,
                outcome=attempt.outcome,
                cause=attempt.cause,
                domain=attempt.domain,
            )
    if history.now_ns is not None:
        yield line(event="now", t=history.now_ns)


_TIMES = frozenset({"t", "t0", "t1", "submitted", "allocated", "durable"})


class _Lines:
    """Makes lines, with times as seconds since `zero`."""

    def __init__(self, zero_ns: int) -> None:
        self._zero_ns = zero_ns

    def __call__(self, **fields: Any) -> str:
        shown = {
            key: (value - self._zero_ns) / 1e9 if key in _TIMES else value
            for key, value in fields.items()
            if value is not None
        }
        return json.dumps(shown, ensure_ascii=False)


def _row_lines(history: History, line: _Lines) -> Iterator[str]:
    rows, names = history.rows, history.accounts.names
    columns = (rows.attempt, rows.rank, rows.account, rows.background, rows.index, rows.count)
    for attempt, rank, account, background, index, count, t0, t1 in zip(
        *(column.tolist() for column in columns),
        rows.t0_ns.tolist(),
        rows.t1_ns.tolist(),
        strict=True,
    ):
        lane = {"attempt": attempt, "rank": rank}
        if account == STEP:
            for k in range(count):
                a, b = (t0 + (t1 - t0) * i // count for i in (k, k + 1))
                yield line(event="step", **lane, step=index + k, t0=a, t1=b)
        elif is_recordable(names[account]):
            yield line(
                event="span",
                **lane,
                account=names[account],
                t0=t0,
                t1=t1,
                background=True if background else None,
            )
