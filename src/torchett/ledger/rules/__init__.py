"""The rules of the ledger, as pure functions on arrays."""
