"""Which files of a run travel, by their names. No other name is sent, and none is taken.

attempts-0.jsonl                 the launcher's log              grows
attempts-0.beat                  its last sign of life           replaced
attempt-1.2/rank-7~1.ett         a flight record                 grows
attempt-1.2/rank-7~1.live        what its ring holds beside it   replaced, removed when empty
attempt-1/crash-7-4711.json      what a rank raised              grows (written once)
"""

import re
from typing import Final, Literal

Kind = Literal["grows", "replaced"]

_N: Final = r"(?:0|[1-9][0-9]{0,8})"
_GROWS: Final = re.compile(
    rf"attempts-{_N}\.jsonl"
    rf"|attempt-(?:{_N}(?:\.{_N})?|all)/(?:rank-(?:{_N}(?:~{_N})?|all)\.ett|crash-{_N}-{_N}\.json)"
)
_REPLACED: Final = re.compile(
    rf"attempts-{_N}\.beat|attempt-{_N}(?:\.{_N})?/rank-{_N}(?:~{_N})?\.live"
)
_JOB: Final = re.compile(r"[\w%][\w.%-]{0,199}")
LONGEST_NAME: Final = 96  # of a file, in bytes


def kind_of(name: str) -> Kind | None:
    """How the file of this name changes; None if it is no file of a run."""
    if len(name) > LONGEST_NAME or not name.isascii():
        return None
    if _GROWS.fullmatch(name):
        return "grows"
    return "replaced" if _REPLACED.fullmatch(name) else None


def is_job(name: str) -> bool:
    """Whether a run's folder may be called so: one part of a path, as `safe_name` makes it."""
    short = len(name.encode(errors="replace")) <= 200
    return short and _JOB.fullmatch(name) is not None
