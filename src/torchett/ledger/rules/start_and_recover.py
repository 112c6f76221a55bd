"""Rule 4: Time to Start and Time to Recover.

    window        ▒▒▒▒▒▒▒▒▒▒▒▒▒███████████ ✗ ╳╳╳╳╳ ✗ ╳╳╳╳╳╳╳╳╳╳╳███████████
    attempt       0                          1       2
                  ├─────────────┤          ├───────────────────┤
                   Time to Start            Time to Recover: one for attempts 0 and 2, as
                                            attempt 1 made no step

Progress begins where the first finished step's effective or unsaved time begins.
"""

from collections.abc import Sequence
from itertools import pairwise

from torchett.ledger.rules.attempt_results import AttemptResult
from torchett.ledger.rules.window import Window


def time_to(frame: Window, results: Sequence[AttemptResult]) -> tuple[int | None, tuple[int, ...]]:
    """Time to Start, and one Time to Recover for each pair of consecutive attempts with steps."""
    moving = [
        (result.progress_ns, result.last_end_ns)
        for result in results
        if result.progress_ns is not None and result.last_end_ns is not None
    ]
    if not moving:
        return None, ()
    recover = tuple(later[0] - earlier[1] for earlier, later in pairwise(moving))
    return moving[0][0] - frame.start_ns, recover
