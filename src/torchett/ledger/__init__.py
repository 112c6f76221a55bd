"""Flight records → ledger → ETT%. Pure functions on arrays: no clock, no I/O."""

from torchett.ledger.books import Books
from torchett.ledger.history import History, settle
from torchett.ledger.ledger import AttemptLedger, Ledger, Loss
from torchett.ledger.rows import AccountTable, Batch, Rows
from torchett.ledger.rules.window import Tenure, Window

# Rises with every change of what a ledger says: a fleet then rolls its jobs up again.
RULES_VERSION = 1

__all__ = [
    "RULES_VERSION",
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
