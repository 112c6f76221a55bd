"""What a run's restarts were restored from, beside what its ledger says was unsaved."""

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchett.ledger.ledger import Ledger
    from torchett.runs.reader import RunReader


def restores_of(
    reader: "RunReader", ledger: "Ledger"
) -> tuple[dict[int, dict[str, Any]], dict[int | None, int]]:
    """Attempt → what it was restored from, and → the rank-nanoseconds that were unsaved by then."""
    from torchett.levers.checkpoint.restore.report import restored_by_attempt

    unsaved: Counter[int | None] = Counter()
    for loss in ledger.losses:
        unsaved[loss.resumed] += loss.net_ns
    return restored_by_attempt(reader.facts("checkpoint_restored")), dict(unsaved)
