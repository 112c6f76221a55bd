"""Run folders that are being written, kept in the fleet's rows within seconds.

    watch = FleetWatch(fleet, [WatchedFolder(path, project="research")])
    while True: watch.look(); sleep(watch.pause_s)

A live run keeps its reader, so that a look costs what is new. One that stands still is looked at
less and less often; one that is over is forgotten, and seen again when a file of it changes.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchett.fleet.fleet import Fleet
from torchett.fleet.intake.rollup import fingerprint
from torchett.fleet.rows import JobRows, JobSource, rows_of
from torchett.fleet.storage.upkeep import compact
from torchett.ledger import RULES_VERSION
from torchett.ledger.hours import HourBooks
from torchett.model.errors import EttError
from torchett.runs.folder import is_run
from torchett.runs.reader import RunReader

SLOWEST_S = 60.0  # between two looks at a run that stands still
_UPKEEP_S = 60.0
_LISTING_S = 2.0  # between two looks for new run folders


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedFolder:
    """A folder of runs, with their project and labels."""

    path: Path
    project: str
    shipped: bool = False
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, kw_only=True)
class _Watched:
    """One run: what was seen of it."""

    source: JobSource
    reader: RunReader | None = None  # while it is live
    hours: HourBooks = field(default_factory=HourBooks)
    seen: object = None
    stands_s: float = 0.0  # how long nothing new has come
    due_s: float = 0.0
    listed_s: float = -1.0  # when its folder changed, as last listed
    changed_s: float = -1.0  # the same, when it was read last


class FleetWatch:
    """Keeps a fleet's rows up to date with folders of runs."""

    def __init__(
        self, fleet: Fleet, folders: Sequence[WatchedFolder] = (), *, every_s: float = 2.0
    ) -> None:
        """What is shipped to the fleet is always watched; `folders` beside it."""
        self.fleet = fleet
        self.folders = list(folders)
        self.every_s = every_s
        self.errors: dict[str, str] = {}  # run folder → why it cannot be read
        self._runs: dict[Path, _Watched] = {}
        self._tidied_s = self._listed_s = -1e9

    def look(self, now_s: float | None = None) -> int:
        """Take in what is new; how many jobs' rows changed."""
        now_s = time.monotonic() if now_s is None else now_s
        if now_s - self._listed_s >= min(_LISTING_S, self.every_s):
            self._list(now_s)
            self._listed_s = now_s
        rows = [
            found
            for run in list(self._runs.values())
            if run.due_s <= now_s and (found := self._look_at(run, now_s)) is not None
        ]
        self.fleet.put(rows)
        if now_s - self._tidied_s > _UPKEEP_S:
            self._tidied_s = now_s
            compact(self.fleet, most_weeks=1)
            named = {row["name"] for row in self.fleet.state.rows("SELECT name FROM segments")}
            self.fleet.segments.remove_unnamed(named)
        return len(rows)

    @property
    def live(self) -> int:
        return sum(run.reader is not None for run in self._runs.values())

    def _list(self, now_s: float) -> None:
        there: set[Path] = set()
        for folder in (*self.folders, *self._shipped()):
            for path, changed_s in _run_folders(folder.path):
                there.add(path)
                run = self._runs.get(path)
                if run is None:
                    source = JobSource(
                        project=folder.project,
                        job=path.name,
                        path=str(path),
                        shipped=folder.shipped,
                        labels=folder.labels,
                    )
                    run = self._runs[path] = _Watched(source=source)
                    if self._is_known(run, changed_s):
                        continue
                run.listed_s = changed_s
                if run.reader is None and run.changed_s != changed_s:
                    run.due_s = min(run.due_s, now_s)
        for gone in set(self._runs) - there:
            del self._runs[gone]
            self.errors.pop(str(gone), None)

    def _shipped(self) -> Iterator[WatchedFolder]:
        try:
            projects = [entry.name for entry in os.scandir(self.fleet.folder / "runs")]
        except OSError:
            return
        for project in projects:
            path = self.fleet.folder / "runs" / project
            yield WatchedFolder(path=path, project=project, shipped=True)

    def _is_known(self, run: _Watched, changed_s: float) -> bool:
        """Whether the fleet has the rows of a run that was over, as it is."""
        row = self.fleet.state.one(
            "SELECT live, print, kernel FROM jobs WHERE project = ? AND job = ? AND path = ?",
            run.source.project,
            run.source.job,
            run.source.path,
        )
        if row is None or row["live"] or row["kernel"] != RULES_VERSION:
            return False
        if row["print"] != fingerprint(run.source.folder):
            return False
        run.listed_s = run.changed_s = changed_s
        run.due_s = float("inf")
        return True

    def _look_at(self, run: _Watched, now_s: float) -> JobRows | None:
        reader = run.reader or RunReader(run.source.folder, shipped=run.source.shipped)
        print_ = fingerprint(run.source.folder)
        run.changed_s = run.listed_s
        try:
            reader.poll()
            seen = (print_, reader.now_ns, _newest(reader))
            if run.reader is not None and seen == run.seen:
                self._stands_still(run, now_s)
                return None
            rows = rows_of(reader, replace(run.source, print=print_), run.hours)
        except Exception as error:  # whatever one job's files hold, the others are read
            said = str(error) if isinstance(error, EttError) else f"{run.source.path}: {error!r}"
            self.errors[run.source.path] = said
            self._stands_still(run, now_s)
            run.reader = None
            return None
        self.errors.pop(run.source.path, None)
        run.seen, run.stands_s = seen, 0.0
        run.reader = reader if rows.live else None
        run.hours = run.hours if rows.live else HourBooks()
        run.due_s = now_s + self.every_s if rows.live else float("inf")
        return rows

    def _stands_still(self, run: _Watched, now_s: float) -> None:
        run.stands_s += self.every_s
        run.due_s = now_s + min(max(self.every_s, run.stands_s / 10), SLOWEST_S)


def _newest(reader: RunReader) -> tuple[int, ...]:
    """Changes with every entry of a ring."""
    return tuple(int(f.ring["seq"][-1]) if len(f.ring) else f.reach for f in reader.flights)


def _run_folders(folder: Path) -> Iterator[tuple[Path, float]]:
    """The run folders below, and when something changed in each: by its folders' own times."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or not entry.is_dir():
            continue
        path = Path(entry.path)
        try:
            if is_run(path):
                times = [one.stat().st_mtime for one in os.scandir(path)]
                yield path, max([entry.stat().st_mtime, *times])
        except OSError:
            continue  # it was removed meanwhile
