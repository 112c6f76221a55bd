"""A history: everything that was recorded about one job, as input of the books."""

from dataclasses import dataclass, field

from torchett.ledger.books import Books
from torchett.ledger.ledger import Ledger
from torchett.ledger.rows import AccountTable, Batch, Rows
from torchett.model.values import Checkpoint, Job


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A job, its rows and checkpoints.

    `notes` say what the reader corrected or could not read, `asides` what else is worth knowing;
    `unrecorded` says why there is no record where there could be one, `warnings` why the headline
    may be wrong.
    """

    job: Job
    rows: Rows
    accounts: AccountTable
    checkpoints: tuple[Checkpoint, ...] = ()
    now_ns: int | None = None
    epoch_s: float = 0.0  # the time that t = 0 stands for
    notes: tuple[str, ...] = field(default=())
    asides: tuple[str, ...] = field(default=())
    unrecorded: str | None = None
    warnings: tuple[str, ...] = field(default=())


def settle(history: History) -> Ledger:
    """The ledger of a history."""
    books = Books(history.accounts)
    books.post(Batch(rows=history.rows, checkpoints=history.checkpoints))
    return books.settle(history.job, history.now_ns)
