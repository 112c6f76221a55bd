"""A run is a folder; every command takes its path or its name.

gpt         the run of that name in ett-runs, else a run folder ./gpt
./gpt, a/b  a run folder at that path, else the run of that name
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from torchett.model.errors import RunError
from torchett.record.identity import GROUP, runs_folder, safe_name

_LONGEST = 60
DUMP = "nccl_trace_rank_"  # in an attempt's folder: dumps of torch's flight recorder, one a rank


def find_run(name: str) -> Path:
    """The folder of the run called `name`, or at that path; a folder that is no run is passed."""
    known = runs_folder(os.environ)
    refused: list[str] = []
    try:
        for path in _candidates(name, known):
            if path.is_dir():
                if is_run(path):
                    return path
                refused.append(f"{path}: expected a run folder, found no record in it")
            elif path.exists():
                refused.append(f"{path}: expected a run folder, found a file")
        there = known.is_dir()
        names = sorted(p.name for p in known.glob("[!.]*") if p.is_dir()) if there else []
    except (OSError, ValueError) as error:
        shown = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunError(f"{shown}: expected a run folder: {reason}") from None
    said = next(iter(refused), f"{name}: no such run")
    if not there:
        raise RunError(
            f"{said}; there is no folder {known}: start a job by `ett run`, set ETT_RUNS, or give"
            " the path of a run"
        )
    groups = [one for one in names if one.startswith(safe_name(name) + GROUP)]
    if groups:
        raise RunError(f"{name} consists of replica groups: name one of them: {', '.join(groups)}")
    near = get_close_matches(name, names, n=1)
    guess = f"; did you mean {near[0]}?" if near else ""
    raise RunError(f"{said}{guess}; {known} has {_some(names)} (set ETT_RUNS, or give a path)")


def _candidates(name: str, known: Path) -> Iterator[Path]:
    """Paths at which the run of this name may be, the likeliest first."""
    path = Path(name)
    is_path = os.sep in name
    if is_path:
        yield path
    if name:
        yield known / safe_name(name)
    if not is_path and name not in ("", ".", ".."):
        yield known / name  # the name as a folder has it: a%2Fb for a/b
    if not is_path:
        yield path


def _some(names: list[str], most: int = 5) -> str:
    """The last of them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[-most:]) + more if names else "no runs"


def is_run(path: Path) -> bool:
    """Whether a folder holds a job's records."""
    return any(name.startswith(("attempts-", "attempt-")) for name in os.listdir(path))


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run that its history is made of, each kind in the order of its names."""

    logs: list[Path]  # of launchers
    records: list[Path]  # of ranks
    crashes: list[Path]  # what ranks raised before their records were open


def files_of(run: Path) -> RunFiles:
    """One listing of the folder and one of each attempt's; OSError if there is no such folder."""
    found = RunFiles([], [], [])
    for name in os.listdir(run):
        if name.startswith("attempts-"):
            if name.endswith(".jsonl"):
                found.logs.append(run / name)
        elif name.startswith("attempt-"):
            try:
                inside = os.listdir(folder := run / name)
            except OSError:
                continue  # no folder, or gone meanwhile
            for one in inside:
                if one.startswith("rank-") and one.endswith(".ett"):
                    found.records.append(folder / one)
                elif one.startswith("crash-") and one.endswith(".json"):
                    found.crashes.append(folder / one)
    for paths in (found.logs, found.records, found.crashes):
        paths.sort()
    return found
