"""Figures read off a ledger and its rows: cost of failures, cost of saves, step times."""
