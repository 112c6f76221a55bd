"""The note beside the headline about steps that may contain something other than training."""

from torchett.ledger.ledger import Ledger
from torchett.ledger.metrics.long_steps import long_steps
from torchett.ledger.rows import Rows
from torchett.model.durations import duration
from torchett.report.words import plural


def long_steps_line(ledger: Ledger, rows: Rows) -> str | None:
    """How far the headline may be off; None if no step is unusually long.

    3 steps of up to 14.5 s where 1.2 ms is usual: if they did not train, ETT is 61.0%
    """
    found = long_steps(ledger, rows)
    if found is None:
        return None
    longest, usual = (duration(round(s * 1e9)) for s in (found.longest_s, found.usual_s))
    each = longest if found.count == 1 else f"up to {longest}"
    many = found.count > 1
    return (
        f"{plural(found.count, 'step')} of {each} where {usual} is usual:"
        f" if {'they' if many else 'it'} did not train, ETT is {found.percent_without:.1f}%"
    )
