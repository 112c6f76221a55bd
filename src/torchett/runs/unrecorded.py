"""Why a run has unattributed time that its script is not responsible for."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from torchett.model.values import Attempt
from torchett.runs.flight_records import Flight
from torchett.runs.launchers import Launches

_ROOM = 1 << 20  # bytes: a record needs less than this to begin


def why_unrecorded(
    run: Path, launches: Launches, flights: Collection[Flight], attempts: Sequence[Attempt]
) -> str | None:
    """One sentence for the report; None where the script could have recorded more."""
    if launches.imported:
        return None
    if launches.disabled and not flights:
        return "nothing was recorded: ETT_DISABLE=1 was set"
    begun = [f for f in flights if f.reach or len(f.ring) or f.exit or f.beat_ns]
    unopened = flights and not begun  # a header that nothing could be written after
    if any(f.dropped for f in flights) or unopened or (not flights and _is_full(run)):
        return f"records were lost: the disk of {run} was full; free some space, or set ETT_RUNS"
    if launches.as_is and not flights:
        return (
            "nothing was recorded: the command ran untouched (--as-is); without that option its"
            " steps are recognised"
        )
    raised = [attempt for attempt in attempts if attempt.domain == "user" and attempt.cause]
    if raised and not begun:
        said = " ".join((raised[-1].cause or "").split())
        return f"the script failed before its first step, so nothing was recorded: {said}"
    if not flights and all(attempt.end_ns is not None for attempt in attempts):
        return (
            "nothing was recorded: no process of the command built a model, trained, or called"
            " ett.init()"
        )
    return None


def _is_full(run: Path) -> bool:
    try:
        room = os.statvfs(run)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < _ROOM
