"""A run's beacon, read from its records: how fresh its last durable checkpoint is.

    attempt 1 ─┤ start ├─ step … 41 ─┤B├──── durable ─ now ┄┄┄┄┄ next save durable
                       └ progress     └── save_s ──┘               due_s (the usual interval on)

A record tells this of every job that is recorded, with whatever it saves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torchett.ledger.ledger import Ledger
from torchett.ledger.metrics.saves import SaveCosts, measure_saves
from torchett.ledger.rows import Rows
from torchett.model.beacon import Beacon
from torchett.model.values import Checkpoint
from torchett.runs.reader import RunReader

SAVES_ON_NOTICE = "saves_on_notice"  # the fact with which a checkpointer says that it listens


@dataclass(slots=True)
class RunBeacon:
    """The beacon of one growing run; rows are joined only when a checkpoint is new."""

    reader: RunReader
    _known: tuple[int, int] = (-1, -1)  # durable checkpoints and attempts at the last look
    _saves: SaveCosts | None = None
    _step_end_ns: int = field(default=0)

    def read(self) -> Beacon | None:
        """The beacon as of now; None before any rank has begun to work."""
        reader = self.reader.poll()
        ledger = reader.ledger()
        if not ledger.attempts:
            return None
        checkpoints = list(reader.checkpoints())
        known = len(checkpoints), len(ledger.attempts)
        if known != self._known:
            self._known = known
            history = reader.history()
            self._saves = measure_saves(history, ledger)
            self._step_end_ns = _step_end_ns(history.rows, checkpoints, ledger.last_durable_step)
        return _beacon(reader, ledger, self._saves, self._step_end_ns)


def _beacon(
    reader: RunReader, ledger: Ledger, saves: SaveCosts | None, step_end_ns: int
) -> Beacon | None:
    last = ledger.attempts[-1]
    given_ns = last.tenure.attempt.allocated_ns or last.tenure.attempt.start_ns
    progress_ns = last.progress_ns
    if progress_ns is None:
        progress_ns = reader.now_ns if reader.now_ns is not None else given_ns
    restarts = [
        (attempt.progress_ns - (known.allocated_ns or known.start_ns)) / 1e9
        for attempt in ledger.attempts
        if attempt.progress_ns is not None
        for known in [attempt.tenure.attempt]
    ]
    save_s, due_s = 0.0, None
    if saves is not None:
        save_s = (saves.blocking_s or 0.0) + (saves.upload_s or 0.0)
        if saves.interval_s is not None and step_end_ns:
            begins_s = max(step_end_ns, progress_ns) / 1e9 + saves.interval_s
            due_s = begins_s + (saves.blocking_s or 0.0) + save_s
    return Beacon(
        job=ledger.job,
        gpus=max(1, ledger.ranks),
        durable_step=ledger.last_durable_step,
        # An attempt that has only begun has nothing to lose but its own start.
        durable_s=max(step_end_ns, progress_ns) / 1e9,
        save_s=save_s,
        due_s=due_s,
        restart_s=max(0.0, restarts[-1]) if restarts else 0.0,
        preemptions=sum(attempt.domain == "scheduler" for attempt in ledger.attempts[:-1]),
        saves_on_signal=any(
            number == last.tenure.attempt.number for number, _, _ in reader.facts(SAVES_ON_NOTICE)
        ),
    )


def _step_end_ns(rows: Rows, checkpoints: Sequence[Checkpoint], step: int) -> int:
    """When the step of the last durable checkpoint ended on the slowest rank; 0 without one.

    Of a step that was not recorded: when its checkpoint was durable.
    """
    made = [one for one in checkpoints if one.step == step]
    if not made:
        return 0
    attempt = max(one.attempt for one in made)
    held = rows.is_step & (rows.attempt == attempt) & (rows.index <= step)
    ends = rows.t1_ns[held & (step < rows.index + rows.count)]
    return int(ends.max()) if len(ends) else min(one.durable_ns for one in made)
