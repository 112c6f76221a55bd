"""What a failure was: its category, who began it, and what another attempt needs.

from torchett.failures import classify
verdict = classify(open("job.log").read())
verdict.category, verdict.domain, verdict.outlook     # "cuda_oom", "user", Outlook.STOP
verdict.evidence.line.number, verdict.initiating_ranks
"""

from torchett.failures.classifier import cause_of, classify, classify_exit, domain_of_exception
from torchett.failures.rules import Rule, read_rules, rules_with, shipped_rules
from torchett.failures.verdict import Verdict
from torchett.failures.vocabulary import UNKNOWN, Outlook, Role, Strength

__all__ = [
    "UNKNOWN",
    "Outlook",
    "Role",
    "Rule",
    "Strength",
    "Verdict",
    "cause_of",
    "classify",
    "classify_exit",
    "domain_of_exception",
    "read_rules",
    "rules_with",
    "shipped_rules",
]
