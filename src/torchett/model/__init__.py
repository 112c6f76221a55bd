"""The values that all rooms share: accounts, causes, spans, steps, attempts. Frozen, no I/O."""

from torchett.model.accounts import ACCOUNTS, Account, account
from torchett.model.causes import CAUSES, DOMAINS, OUTCOMES, Domain, Outcome, domain_of
from torchett.model.values import Attempt, Checkpoint, Job, Span, Step

__all__ = [
    "ACCOUNTS",
    "CAUSES",
    "DOMAINS",
    "OUTCOMES",
    "Account",
    "Attempt",
    "Checkpoint",
    "Domain",
    "Job",
    "Outcome",
    "Span",
    "Step",
    "account",
    "domain_of",
]
