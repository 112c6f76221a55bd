"""Flight records → ledger → ETT%. Pure functions on arrays: no clock, no I/O."""

from torchett.ledger.books import Books
from torchett.ledger.history import History, settle
from torchett.ledger.ledger import AttemptLedger, Ledger, Loss
from torchett.ledger.rows import AccountTable, Batch, Rows
from torchett.ledger.window import Tenure, Window

__all__ = [
    "AccountTable",
    "AttemptLedger",
    "Batch",
    "Books",
    "History",
    "Ledger",
    "Loss",
    "Rows",
    "Tenure",
    "Window",
    "settle",
]
