"""A recorder played by hand: the clock is a number, and what was played is known exactly.

Moves (times in units of 10 ms):

    ("gap", dt)                 nothing happens
    ("step", count, moves)      with ett.step(i, count): moves
    ("loop", [(wait, moves)…])  for batch in ett.steps(loader): moves, each after a wait
    ("span", account, moves)    with ett.stage(account): moves
    ("open", slot, account, background)   a thread enters a span; it leaves with ("close", slot)
    ("saved", back)             ett.checkpoint_durable of the last step but `back`
    ("jump", by)                the next step has another index
    ("times", n, moves)         the moves, n times
"""

import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from torchett.ledger import AccountTable, History, Ledger, Rows, settle
from torchett.model import Checkpoint, Job, Span, Step
from torchett.record.attempt_log import AttemptLog, attempts_path
from torchett.record.clock import Anchor
from torchett.record.flight.format import read_header
from torchett.record.flight.ring import ring_path
from torchett.record.flight.writer import FlightWriter
from torchett.record.recorder import Recorder

UNIT_NS = 10_000_000
HERE = Anchor(host="here", clock="here", wall_ns=0, mono_ns=0)
Move = tuple[Any, ...]


def flight(
    run: Path,
    *,
    rank: int = 0,
    ranks: int = 1,
    attempt: int = 0,
    restart: int = 0,
    began_ns: int = 0,
    anchor: Anchor = HERE,
    **facts: Any,
) -> FlightWriter:
    """A flight record as a trainer opens it, without threads: it folds and writes in `put`."""
    who = {"attempt": attempt, "restart": restart, "rank": rank}
    facts = {"job": run.name, "ranks": ranks, "began_ns": began_ns, "pid": 1, **facts}
    writer = FlightWriter(run, **who, facts={**who, **facts, "anchor": anchor.to_json()})
    writer.open_here()
    WRITERS.append(writer)
    RINGS.append(writer.ring_path)
    return writer


WRITERS: list[FlightWriter] = []  # whose rings are held


def killed() -> None:
    """The processes of all writers so far are dead: nobody holds their rings any more."""
    while WRITERS:
        WRITERS.pop()._ring_file.let_go()


@pytest.fixture(autouse=True)
def no_rings_left() -> Iterator[None]:
    """After a test: no ring of its writers stays in shared memory."""
    yield
    clear()


def clear() -> None:
    """Remove the rings of all writers so far."""
    killed()
    while RINGS:
        RINGS.pop().unlink(missing_ok=True)


RINGS: list[Path] = []


def ring_of(log: Path) -> Path:
    """Where the ring of this log is."""
    return ring_path(log, read_header(log.read_bytes().split(b"\n")[0] + b"\n"))


def launched(
    run: Path,
    *facts: dict[str, Any],
    anchor: Anchor = HERE,
    node: int = 0,
    beat_ns: int | None = None,
    **head: Any,
) -> AttemptLog:
    """A launcher's log that says these facts, with its last sign of life on the same clock."""
    log = AttemptLog(run, job=run.name, node=node, anchor=anchor, **head)
    for fact in facts:
        log.append(fact)
    beat = attempts_path(run, node).with_suffix(".beat")
    beat.unlink()
    if beat_ns is not None:
        beat.write_bytes(struct.pack("<qq", 1, beat_ns))
    return log


@dataclass(slots=True)
class Clock:
    """A clock that is a number."""

    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns

    def add(self, units: int) -> None:
        self.now_ns += units * UNIT_NS


@dataclass
class Player:
    """Plays moves on a recorder and keeps what a perfect record of them would hold."""

    run: Path
    recorder: Recorder
    clock: Clock
    index: int = 0
    waited: bool = False
    rows: list[Span | Step] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    slots: dict[int, tuple[Any, Callable[[], None]]] = field(default_factory=dict)

    def play(self, moves: Sequence[Move]) -> None:
        for name, *rest in moves:
            getattr(self, f"_{name}")(*rest)

    @property
    def indices(self) -> list[int]:
        """Every step that was made, in order of their numbers."""
        steps = (row for row in self.rows if isinstance(row, Step))
        return sorted(step.index + k for step in steps for k in range(step.count))

    def finish(self) -> None:
        """Leave every span that is still open."""
        for slot in list(self.slots):
            self._close(slot)

    def _gap(self, dt: int) -> None:
        self.clock.add(dt)

    def _step(self, count: int, moves: Sequence[Move]) -> None:
        index, t0 = self.index, self.clock()
        with self.recorder.step(index, count):
            self.play(moves)
        self.index = index + count
        self.rows.append(Step(index=index, t0_ns=t0, t1_ns=self.clock(), count=count))

    def _loop(self, turns: Sequence[tuple[int, Sequence[Move]]]) -> None:
        waits: list[tuple[int, int]] = []

        def batches() -> Iterator[Sequence[Move]]:
            for wait, moves in turns:
                before = self.clock()
                self.clock.add(wait)
                waits.append((before, self.clock()))
                yield moves

        for moves in self.recorder.steps(batches(), self.index):
            begin, t0 = waits[-1]
            if not self.waited:
                self.rows.append(Span(account="get_first_batch_data", t0_ns=begin, t1_ns=t0))
            self.play(moves)
            if self.waited:
                self.rows.append(Span(account="data_wait", t0_ns=begin, t1_ns=t0))
            self.rows.append(Step(index=self.index, t0_ns=t0, t1_ns=self.clock()))
            self.waited = True
            self.index += 1

    def _span(self, account: str, moves: Sequence[Move]) -> None:
        t0 = self.clock()
        with self.recorder.span(account):
            self.play(moves)
        self.rows.append(Span(account=account, t0_ns=t0, t1_ns=self.clock()))

    def _open(self, slot: int, account: str, background: bool) -> None:
        if slot in self.slots:
            return
        timer, t0 = self.recorder.span(account, background), self.clock()
        timer.__enter__()

        def over() -> None:
            timer.__exit__()
            span = Span(account=account, t0_ns=t0, t1_ns=self.clock(), background=background)
            self.rows.append(span)

        self.slots[slot] = timer, over

    def _close(self, slot: int) -> None:
        if slot in self.slots:
            self.slots.pop(slot)[1]()

    def _saved(self, back: int) -> None:
        step = max(0, self.index - 1 - back)
        self.recorder.checkpoint_durable(step)
        self.checkpoints.append(Checkpoint(step=step, durable_ns=self.clock()))

    def _jump(self, by: int) -> None:
        self.index = max(0, self.index + by)

    def _times(self, n: int, moves: Sequence[Move]) -> None:
        for _ in range(n):
            self.play(moves)


def player(run: Path, patch: pytest.MonkeyPatch, **who: Any) -> Player:
    """A player on a fresh record in `run`, whose clock starts at 0."""
    clock = Clock()
    patch.setattr(sys.modules["torchett.record.recorder"], "now_ns", clock)
    return Player(run=run, recorder=Recorder(flight(run, **who)), clock=clock)


def perfect(job: Job, *parts: tuple[int, Player]) -> Ledger:
    """The ledger of what the players played, each in the attempt of that number."""
    accounts = AccountTable()
    rows = [
        (type(row))(**{k: getattr(row, k) for k in row.__slots__} | {"attempt": number})
        for number, played in parts
        for row in played.rows
    ]
    checkpoints = [
        Checkpoint(attempt=number, step=c.step, durable_ns=c.durable_ns)
        for number, played in parts
        for c in played.checkpoints
    ]
    return settle(
        History(
            job=job,
            rows=Rows.from_values(rows, accounts),
            accounts=accounts,
            checkpoints=tuple(checkpoints),
        )
    )


def facts(ledger: Ledger) -> dict[str, Any]:
    """What a record must keep of a job, however it is folded."""
    return {
        "accounts": ledger.accounts,
        "groups": ledger.groups,
        "last_step": ledger.last_step,
        "time_to_start_ns": ledger.time_to_start_ns,
        "time_to_recover_ns": ledger.time_to_recover_ns,
        "attempts": [(a.first_step, a.progress_ns, a.last_end_ns) for a in ledger.attempts],
    }


def steps_in(rows: Rows) -> int:
    """How many steps the rows stand for."""
    return int(rows.count[rows.is_step].sum())


def indices_in(rows: Rows) -> list[int]:
    """The steps that the rows stand for, blocks written out, in order of their numbers."""
    steps = rows.take(rows.is_step)
    pairs = zip(steps.index.tolist(), steps.count.tolist(), strict=True)
    return sorted(index + k for index, count in pairs for k in range(count))
