"""A ledger as CSV: one row for each attempt, group and account, for spreadsheets and scripts."""

import csv
import io

from torchett.ledger.ledger import Ledger, seconds


def accounts_csv(ledger: Ledger) -> str:
    """The rows with a header; the seconds, summed over ranks, sum to rank_seconds."""
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(("job", "attempt", "group", "account", "rank_seconds"))
    for attempt in ledger.attempts:
        for group, accounts in attempt.tree.items():
            for account, ns in accounts.items():
                if ns:
                    number = attempt.tenure.attempt.number
                    rows.writerow((ledger.job, number, group, account, f"{seconds(ns):.9f}"))
    return written.getvalue()
