"""A run folder read as one job: launchers' logs and flight records, placed on one clock.

    attempts-0.jsonl ──► launches, clocks ─┐
    attempt-0/rank-*.ett ──► flights ──────┴──► job, rows, checkpoints ──► books ──► ledger

`poll` takes in what is new. What was corrected or could not be read is said in `notes`.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from torchett.ledger.books import Books
from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.ledger.rows import AccountTable, Batch, Rows
from torchett.model.errors import RunError
from torchett.model.values import Checkpoint, Job
from torchett.record.attempt_log import last_beat
from torchett.record.flight.seal import seal_if_left_behind
from torchett.runs.attempts import attempts_of, new_launchers, numbered
from torchett.runs.flight_records import (
    Flight,
    Key,
    hole_rows,
    log_rows,
    open_flight,
    open_rows,
    ring_rows,
)
from torchett.runs.folder import RunFiles, files_of
from torchett.runs.launchers import Clocks, Launches, read_launches
from torchett.runs.unrecorded import why_unrecorded

SHIPPED = ".shipped"  # lies in a run folder that came from another host
_MOST_HINTS = 5  # of what hooks noted for the reader


@dataclass(frozen=True, slots=True)
class _Placing:
    """How a record's rows were posted: if this changes, they must be posted again."""

    offset_ns: int
    number: int


class RunReader:
    """A run that may still be growing."""

    def __init__(self, run: Path, *, shipped: bool = False) -> None:
        """`shipped`: the folder came from elsewhere, so that no file beside it is its own."""
        self.run = run
        self._shipped = shipped or os.path.exists(run / SHIPPED)
        self.notes: list[str] = []
        self.asides: list[str] = []
        self.warnings: list[str] = []  # why the headline may be wrong
        self.unrecorded: str | None = None
        self.labels: dict[str, str] = {}
        self.command: tuple[str, ...] = ()
        self.levers: frozenset[str] = frozenset()
        self.new_launchers: dict[int, bool] = {}  # attempt → a new launcher began it, if known
        self.job = Job(name=run.name, ranks=1)
        self.now_ns: int | None = None
        self._flights: dict[Path, Flight] = {}
        self._placing: dict[Path, _Placing] = {}
        self._posted: list[Batch] = []
        self._provisional = Batch(rows=Rows.none())
        self._accounts = AccountTable()
        self._books = Books(self._accounts)

    def poll(self) -> "RunReader":
        """Read what has been written since the last poll."""
        try:
            files = files_of(self.run)
        except OSError as error:
            raise RunError(f"{self.run}: not readable: {error.strerror}") from None
        clocks = Clocks()
        launches = read_launches(self.run, clocks, files)
        unreadable = list(self._read_flights(files))
        if not launches.attempts and not self._flights:
            raise RunError(next(iter(unreadable), f"{self.run}: expected a run, found no record"))
        for flight in sorted(self._flights.values(), key=lambda f: f.anchor.wall_ns):
            clocks.see(flight.anchor)
        rivals = dict(_rivals(list(self._flights.values())))
        flights = [flight for path, flight in self._flights.items() if path not in rivals]
        numbers = numbered(launches, flights)
        placing = {
            flight.path: _Placing(clocks.offset_ns(flight.anchor), numbers.get(flight.key, 0))
            for flight in flights
        }
        if any(placing.get(path) != posted for path, posted in self._placing.items()):
            self._forget()
            return self.poll()
        self._placing = placing
        attempts, moved = attempts_of(launches, flights, numbers, clocks)
        ranks = launches.ranks or max((attempt.ranks for attempt in attempts), default=1)
        self.job = Job(name=launches.job or self.run.name, ranks=ranks, attempts=attempts)
        self.labels = launches.labels
        self.command, self.levers = launches.command, launches.levers
        self.new_launchers = new_launchers(launches, numbers)
        self.now_ns = launches.now_ns or max(self._beats(flights), default=None)
        self._take_logs(flights, launches)
        self._take_rings(flights)
        self.notes = [*launches.notes, *moved, *clocks.corrections(), *rivals.values()]
        for flight in flights:
            if jump := clocks.jump_ns(flight.anchor):
                self.notes.append(
                    f"{flight.path}: the wall clock had jumped by {jump / 1e9:+.3f} s;"
                    " placed by the monotonic clock"
                )
            self.notes += flight.problems()
        self.notes += unreadable
        self.asides = list(launches.asides())
        self.unrecorded = why_unrecorded(self.run, launches, flights, attempts)
        self.notes += list(dict.fromkeys(_hints(flights)))[:_MOST_HINTS]
        self.warnings = list(dict.fromkeys(_unseen_restarts(flights)))[:_MOST_HINTS]
        return self

    def ledger(self) -> Ledger:
        """The ledger as of the last poll."""
        return self._books.settle(self.job, self.now_ns, self._provisional)

    def history(self) -> History:
        """The whole history, as of the last poll."""
        return History(
            job=self.job,
            rows=Rows.joined([*(batch.rows for batch in self._posted), self._provisional.rows]),
            accounts=self._accounts,
            checkpoints=tuple(self.checkpoints()),
            now_ns=self.now_ns,
            notes=tuple(self.notes),
            asides=tuple(self.asides),
            unrecorded=self.unrecorded,
            warnings=tuple(self.warnings),
        )

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Every checkpoint that became durable, as of the last poll."""
        for batch in (*self._posted, self._provisional):
            yield from batch.checkpoints

    @property
    def beats(self) -> bool:
        """Whether a launcher or, where there is none, a rank shows that it is alive."""
        return last_beat(self.run) is not None or any(self._beats(self.flights))

    def _beats(self, flights: Iterable[Flight]) -> Iterator[int]:
        """When ranks of the last attempt that have not ended showed that they are alive."""
        last = self.job.attempts[-1].number if self.job.attempts else None
        for flight in flights:
            placing = self._placing[flight.path]
            if flight.beat_ns is not None and placing.number == last:
                yield flight.beat_ns + placing.offset_ns

    @property
    def flights(self) -> list[Flight]:
        """The records that count."""
        return [self._flights[path] for path in self._placing]

    def facts(self, kind: str) -> Iterator[tuple[int, int, Any]]:
        """Attempt, rank and fact of everything that levers noted under `kind`."""
        for number, rank, _, fact in self.placed_facts(kind):
            yield number, rank, fact

    def placed_facts(self, kind: str) -> Iterator[tuple[int, int, int, Any]]:
        """As `facts`, and third: what to add to a fact's times to get them on the job's clock."""
        for flight in self.flights:
            placing = self._placing[flight.path]
            for known, fact in flight.facts:
                if known == kind:
                    yield placing.number, flight.rank, placing.offset_ns, fact

    def _forget(self) -> None:
        self._flights, self._placing, self._posted = {}, {}, []
        self._accounts = AccountTable()
        self._books = Books(self._accounts)

    def _read_flights(self, files: RunFiles) -> Iterator[str]:
        """Poll every record of the folder; a line for each that cannot be read."""
        for path in files.records:
            flight = self._flights.get(path) or open_flight(path, shipped=self._shipped)
            if isinstance(flight, str):
                yield flight
                continue
            try:
                if not (flight.closed or flight.sealed or flight.header.get("launched")):
                    seal_if_left_behind(path, flight.header)
                flight.poll()
            except OSError as error:
                yield f"{path}: not readable: {error.strerror}"
                continue
            self._flights[path] = flight

    def _take_logs(self, flights: list[Flight], launches: Launches) -> None:
        parts: list[Rows] = []
        checkpoints: list[Checkpoint] = []
        for flight in flights:
            placing = self._placing[flight.path]
            rows, durable = log_rows(flight, self._accounts, placing.offset_ns)
            if not launches.imported:
                rows = _in_attempt(rows, placing.number)
                durable = [replace(c, attempt=placing.number) for c in durable]
            parts.append(rows)
            checkpoints += durable
        batch = Batch(rows=Rows.joined(parts), checkpoints=tuple(checkpoints))
        if len(batch.rows) or checkpoints:
            self._posted.append(batch)
            self._books.post(batch)

    def _take_rings(self, flights: list[Flight]) -> None:
        """What is not in a log yet counts only until the next poll."""
        parts: list[Rows] = []
        checkpoints: list[Checkpoint] = []
        ends = {attempt.number: attempt.end_ns for attempt in self.job.attempts}
        last = self.job.attempts[-1].number if self.job.attempts else None
        followed = dict(self._followed(flights))
        for flight in flights:
            placing = self._placing[flight.path]
            offset, number = placing.offset_ns, placing.number
            rows, durable = ring_rows(flight, self._accounts, offset)
            alive = max(flight.last_ns, flight.beat_ns or 0) + offset
            seen = max(alive, int(rows.t1_ns.max()) if len(rows) else 0)
            until = ends.get(number) or (self.now_ns if number == last else None) or seen
            until = min(until, followed.get(flight.path, until))
            parts += [
                _in_attempt(part, number)
                for part in (
                    rows,
                    open_rows(flight, self._accounts, offset, max(until, seen)),
                    hole_rows(flight, self._accounts, offset),
                )
                if len(part)
            ]
            checkpoints += [replace(c, attempt=number) for c in durable]
        self._provisional = Batch(rows=Rows.joined(parts), checkpoints=tuple(checkpoints))

    def _followed(self, flights: Iterable[Flight]) -> Iterator[tuple[Path, int]]:
        """Records after which another process was the same rank, and when that one began."""
        placed = defaultdict[tuple[int, int], list[tuple[int, Path]]](list)
        for flight in flights:
            placing = self._placing[flight.path]
            begin_ns = flight.began_ns + placing.offset_ns
            placed[placing.number, flight.rank].append((begin_ns, flight.path))
        for ranks in placed.values():
            for (_, path), (begin_ns, _) in pairwise(sorted(ranks)):
                yield path, begin_ns


def _hints(flights: Iterable[Flight]) -> Iterator[str]:
    """What hooks did not recognise, except of ranks that failed."""
    for flight in flights:
        if "error" not in (flight.exit or {}):
            for kind, fact in flight.facts:
                if kind == "hint":
                    yield str(fact.get("says"))


def _unseen_restarts(flights: Iterable[Flight]) -> Iterator[str]:
    """Libraries that let healthy ranks go on after a failure, where nothing records how."""
    for flight in flights:
        for kind, fact in flight.facts:
            if kind == "unseen_restarts":
                yield (
                    f"{fact.get('library')} restarts training inside processes in a way that is not"
                    " recorded: failures, lost steps and waits may count as effective"
                )


def _in_attempt(rows: Rows, number: int) -> Rows:
    return replace(rows, attempt=np.broadcast_to(np.int32(number), (len(rows),)))


def _rivals(flights: list[Flight]) -> Iterator[tuple[Path, str]]:
    """Records to leave out: two processes claimed one rank at one time, and one has to give way.

    Processes that were the same rank one after the other are both kept.
    """
    claims = defaultdict[tuple[Key, int], list[Flight]](list)
    for flight in flights:
        claims[flight.key, flight.rank].append(flight)
    for ((attempt, _, _), rank), rivals in claims.items():
        kept: list[Flight] = []
        for flight in sorted(rivals, key=lambda f: (-f.reach - len(f.ring), f.began_ns)):
            clash = next((k for k in kept if _at_once(k, flight)), None)
            if clash is None:
                kept.append(flight)
                continue
            yield (
                flight.path,
                f"{flight.path}: two processes at once claimed rank {rank} of attempt {attempt}"
                f" (pids {clash.header.get('pid')} and {flight.header.get('pid')});"
                " this record is left out",
            )


def _at_once(one: Flight, other: Flight) -> bool:
    def until(flight: Flight) -> int:
        return max(flight.last_ns, int(flight.ring["t1"].max()) if len(flight.ring) else 0)

    same = one.anchor.clock == other.anchor.clock  # then anchors differ by how they were read
    apart = 0 if same else other.anchor.offset_ns - one.anchor.offset_ns
    return one.began_ns < until(other) + apart and other.began_ns + apart < until(one)
