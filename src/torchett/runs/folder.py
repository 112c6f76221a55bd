"""A run is a folder; every command takes its path or its name."""

import os
from pathlib import Path

from torchett.model.errors import RunError
from torchett.record.identity import runs_folder


def find_run(name: str) -> Path:
    """The folder of the run called `name`, or at that path."""
    known = runs_folder(os.environ)
    try:
        for path in (Path(name), known / name):
            if path.is_dir():
                if not is_run(path):
                    raise RunError(f"{path}: expected a run folder, found no record in it")
                return path
            if path.exists():
                raise RunError(f"{path}: expected a run folder, found a file")
        near = sorted(p.name for p in known.glob("[!.]*") if p.is_dir()) if known.is_dir() else []
    except (OSError, ValueError) as error:
        shown = name if len(name) <= 60 else f"{name[:57]}…"
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunError(f"{shown}: expected a run folder: {reason}") from None
    raise RunError(f"{name}: no such run; {known} has {_some(near)} (set ETT_RUNS, or give a path)")


def _some(names: list[str], most: int = 5) -> str:
    """The last of them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[-most:]) + more if names else "no runs"


def is_run(path: Path) -> bool:
    """Whether a folder holds a job's records."""
    return any(name.startswith(("attempts-", "attempt-")) for name in os.listdir(path))
