"""Run folders into a fleet's rows: those that are new, changed, live, or of older rules.

rolled = roll_up(fleet, sources, engine="local", workers=2)
rolled.jobs, rolled.unchanged, rolled.errors
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchett.fleet.intake.engines import ENGINES
from torchett.fleet.rows import JobRows, JobSource
from torchett.fleet.storage.upkeep import compact
from torchett.ledger import RULES_VERSION

if TYPE_CHECKING:
    from torchett.fleet.fleet import Fleet

_AT_ONCE = 2_000  # jobs whose rows are held in memory before they are put


@dataclass(slots=True, kw_only=True)
class RolledUp:
    """What a roll-up did."""

    jobs: int = 0
    unchanged: int = 0
    errors: list[str] = field(default_factory=list)


def roll_up(
    fleet: "Fleet",
    sources: Iterable[JobSource],
    *,
    engine: str = "local",
    workers: int = 1,
    again: bool = False,
) -> RolledUp:
    """Make the rows of these runs; with `again` also of those that have not changed since."""
    done = RolledUp()
    wanted: list[JobSource] = []
    for source in sources:
        if again or _is_new(fleet, source):
            wanted.append(source)
        else:
            done.unchanged += 1
    rows: list[JobRows] = []
    for source, found in ENGINES[engine](wanted, workers):
        if isinstance(found, str):
            done.errors.append(found if source.path in found else f"{source.path}: {found}")
            continue
        rows.append(found)
        done.jobs += 1
        if len(rows) >= _AT_ONCE:
            fleet.put(rows)
            rows = []
    fleet.put(rows)
    compact(fleet)
    return done


def sources_of(
    runs: Iterable[Path], project: str, labels: Mapping[str, str] | None = None
) -> Iterator[JobSource]:
    """A source for each run folder."""
    for run in runs:
        path = run.absolute()
        yield JobSource(
            project=project,
            job=path.name,
            path=str(path),
            labels=tuple(sorted((labels or {}).items())),
            print=fingerprint(path),
        )


def known_sources(fleet: "Fleet") -> list[JobSource]:
    """All jobs of the fleet whose run folders are there still."""
    sql = "SELECT project, job, path, source, labels FROM jobs WHERE path IS NOT NULL"
    found = []
    for row in fleet.state.rows(sql):
        path = Path(row["path"])
        if path.is_dir():
            found.append(
                JobSource(
                    project=row["project"],
                    job=row["job"],
                    path=row["path"],
                    source=row["source"],
                    shipped=fleet.holds(path),
                    labels=tuple(json.loads(row["labels"] or "{}").items()),
                    print=fingerprint(path),
                )
            )
    return found


def fingerprint(run: Path) -> str:
    """Changes when a file of the run does: how many there are, their bytes, the newest time."""
    files = size = newest = 0
    for entry in _files(run):
        found = entry.stat()
        files, size, newest = files + 1, size + found.st_size, max(newest, found.st_mtime_ns)
    return f"{files}:{size}:{newest}"


def _files(run: Path) -> Iterator[os.DirEntry[str]]:
    try:
        entries = list(os.scandir(run))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name.startswith("attempt-"):
                yield from (one for one in os.scandir(entry.path) if one.is_file())
        elif entry.is_file():
            yield entry


def _is_new(fleet: "Fleet", source: JobSource) -> bool:
    row = fleet.state.one(
        "SELECT live, print, kernel, path, labels FROM jobs WHERE project = ? AND job = ?",
        source.project,
        source.job,
    )
    if row is None or row["live"] or row["kernel"] != RULES_VERSION:
        return True
    same = (row["print"], row["path"]) == (source.print, source.path)
    return not same or json.loads(row["labels"] or "{}") != dict(source.labels)
