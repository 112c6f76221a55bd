"""The runs of a folder, one line each: when, how many ranks, how effective, how large."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchett.model.errors import EttError, RunError
from torchett.record.identity import runs_folder
from torchett.runs.folder import is_run
from torchett.runs.reader import RunReader


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run. `error` says why it could not be read; its figures are None then."""

    name: str
    path: Path
    began_s: float | None  # since the epoch
    changed_s: float  # when its folder was written to last
    bytes: int
    ranks: int | None = None
    attempts: int | None = None
    ett_percent: float | None = None
    failures: int | None = None
    last_step: int | None = None
    live: bool = False
    error: str | None = None


def run_folders(runs: Path) -> list[Path]:
    """The run folders below `runs`, the one written to last first."""
    if not runs.is_dir():
        return []
    found = [path for path in runs.iterdir() if path.is_dir() and is_run(path)]
    return sorted(found, key=changed_s, reverse=True)


def newest_run() -> Path:
    """The run written to last, of those in this folder (or in ETT_RUNS)."""
    runs = runs_folder(os.environ).absolute()
    found = run_folders(runs)
    if not found:
        raise RunError(f"{runs}: no run yet: set ETT_RUNS, or run `ett run -- COMMAND` first")
    return found[0]


def changed_s(run: Path) -> float:
    """When a run's folder was written to last, in seconds since the epoch."""
    return max((entry.stat().st_mtime for entry in os.scandir(run)), default=0.0)


def summary(run: Path) -> RunSummary:
    """The line of one run."""
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    changed = changed_s(run)
    try:
        reader = RunReader(run).poll()
        ledger = reader.ledger()
    except EttError as error:
        return RunSummary(
            name=run.name, path=run, began_s=None, changed_s=changed, bytes=size, error=str(error)
        )
    return RunSummary(
        name=run.name,
        path=run,
        began_s=reader.history().epoch_s + ledger.window.start_ns / 1e9,
        changed_s=changed,
        bytes=size,
        ranks=ledger.ranks,
        attempts=len(ledger.attempts),
        ett_percent=ledger.ett_percent,
        failures=ledger.number_of_failures,
        last_step=ledger.last_step,
        live=ledger.window.live,
    )


def summaries(runs: Path, most: int | None = None) -> Iterator[RunSummary]:
    """The newest runs, one after the other."""
    for run in run_folders(runs)[:most]:
        yield summary(run)
