"""The runs of a folder, kept read: a row for each, and all that is known of one.

A run that is over is read once; a live one is looked at again when it is asked for, at most every
second, by the first request.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.ledger.metrics.spread import RankSpread, spread
from torchett.ledger.timeline import Timeline, timeline
from torchett.model.accounts import GROUPS
from torchett.model.errors import EttError, RunError
from torchett.report.pages.job_view import JobView, job_view
from torchett.report.sections.next_steps import NextStep
from torchett.runs.folder import is_run
from torchett.runs.reader import RunReader
from torchett.runs.summary import changed_s, run_folders
from torchett.serve.timeline.tiles import Lanes

_KEPT = 48  # runs that are held in memory
_FRESH_S = 1.0
_LONGEST_NAME = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What levers and logs know of a run beside its ledger."""

    compiles: Mapping[str, Any] | None = None
    evidence: Mapping[int, str] = field(default_factory=dict)
    tiers: Mapping[str, int] = field(default_factory=dict)
    asides: tuple[str, ...] = ()
    advice: Sequence[NextStep] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One line of a list of jobs."""

    key: str  # the run's name, or PROJECT/JOB in a fleet
    name: str
    state: str  # live, success, failed, preempted, vanished; unreadable
    began_s: float | None = None
    ended_s: float | None = None
    ranks: int | None = None
    attempts: int | None = None
    ett_percent: float | None = None
    failures: int | None = None
    time_to_start_s: float | None = None
    time_to_recover_s: float | None = None
    rank_hours: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)  # group → percent
    labels: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None

    @property
    def live(self) -> bool:
        return self.state == "live"


class JobRead:
    """One run as of one look."""

    def __init__(
        self,
        key: str,
        reader: RunReader,
        details: Callable[[RunReader], Details],
        lock: threading.Lock,
    ) -> None:
        self.key = key
        self.ledger: Ledger = reader.ledger()
        self.history: History = reader.history()
        self._reader, self._details_of, self._lock = reader, details, lock
        self.at_s = time.monotonic()

    @cached_property
    def view(self) -> JobView:
        with self._lock:  # the reader may be asked for a later look meanwhile
            known = self._details_of(self._reader)
        return job_view(
            self.ledger,
            self.history,
            compiles=known.compiles,
            evidence=known.evidence,
            tiers=known.tiers,
            advice=known.advice,
        )

    @cached_property
    def segments(self) -> Timeline:
        return timeline(self.ledger, self.history)

    @cached_property
    def spreads(self) -> list[RankSpread]:
        return spread(self.history.rows)

    @cached_property
    def lanes(self) -> Lanes:
        window = self.ledger.window
        most = max((a.tenure.attempt.ranks for a in self.ledger.attempts), default=0)
        return Lanes(self.segments, window.start_ns, window.end_ns, most)


class _Held:
    """A reader with its last look; one thread at a time reads."""

    def __init__(self, path: Path) -> None:
        self.lock = threading.Lock()
        self.reader = RunReader(path)
        self.changed_s = 0.0
        self.read: JobRead | None = None


class RunFolders:
    """All runs below one folder."""

    def __init__(self, folder: Path, details: Callable[[RunReader], Details]) -> None:
        self.folder = folder
        self._details = details
        self._held: OrderedDict[Path, _Held] = OrderedDict()
        self._rows: dict[Path, tuple[float, JobRow]] = {}
        self._lock = threading.Lock()

    def rows(self) -> list[JobRow]:
        """A row for each run: live ones first, then the newest."""
        paths = run_folders(self.folder)
        rows = [self._row(path) for path in paths]
        with self._lock:
            for gone in set(self._rows) - set(paths):
                del self._rows[gone]
        return sorted(rows, key=lambda row: (not row.live, -(row.began_s or 0)))

    def find(self, key: str) -> Path | None:
        """The folder of the run called so, if there is one."""
        if not key or len(key) > _LONGEST_NAME or "\0" in key or "/" in key or key.startswith("."):
            return None
        path = self.folder / key
        return path if path.is_dir() and is_run(path) else None

    def job(self, key: str) -> JobRead:
        """What is known of one run by now; RunError if there is none or it cannot be read."""
        path = self.find(key)
        if path is None:
            raise RunError(f"{key[:80]}: no such run in {self.folder}")
        return self.at(path, key)

    def at(self, path: Path, key: str) -> JobRead:
        """The run in this folder."""
        with self._lock:
            held = self._held.get(path) or _Held(path)
            self._held[path] = held
            self._held.move_to_end(path)
            while len(self._held) > _KEPT:
                self._held.popitem(last=False)
        with held.lock:
            return self._look(held, path, key)

    def _look(self, held: _Held, path: Path, key: str) -> JobRead:
        known = held.read
        if known is not None:
            young = time.monotonic() - known.at_s < _FRESH_S
            if young or (not known.ledger.window.live and changed_s(path) == held.changed_s):
                return known
        held.changed_s = changed_s(path)
        held.read = JobRead(key, held.reader.poll(), self._details, held.lock)
        return held.read

    def _row(self, path: Path) -> JobRow:
        known = self._rows.get(path)
        changed = changed_s(path)
        if known is not None and known[0] == changed and not known[1].live:
            return known[1]
        try:
            row = row_of(path.name, self.at(path, path.name))
        except (EttError, OSError) as error:
            row = JobRow(key=path.name, name=path.name, state="unreadable", error=str(error))
        with self._lock:
            self._rows[path] = changed, row
        return row


def row_of(key: str, read: JobRead) -> JobRow:
    """The line of one run."""
    ledger, epoch = read.ledger, read.history.epoch_s
    window, recover = ledger.window, ledger.time_to_recover_ns
    start, whole = ledger.time_to_start_ns, max(ledger.rank_ns, 1)
    return JobRow(
        key=key,
        name=ledger.job,
        state=window.tenures[-1].state if window.tenures else "vanished",
        began_s=epoch + window.start_ns / 1e9,
        ended_s=epoch + window.end_ns / 1e9,
        ranks=ledger.ranks,
        attempts=len(window.tenures),
        ett_percent=ledger.ett_percent,
        failures=ledger.number_of_failures,
        time_to_start_s=None if start is None else start / 1e9,
        time_to_recover_s=sum(recover) / len(recover) / 1e9 if recover else None,
        rank_hours=ledger.rank_ns / 3.6e12,
        shares={group: 100 * ledger.groups[group] / whole for group in GROUPS},
    )
