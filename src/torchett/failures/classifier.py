"""The verdict on a text, or on an exit status: pure functions of what is known."""

import signal
from collections.abc import Iterable
from functools import lru_cache

from torchett.failures.evidence import find_evidence, usual_lines
from torchett.failures.rules import Rule, shipped_rules
from torchett.failures.verdict import Verdict, judge
from torchett.failures.vocabulary import UNKNOWN
from torchett.model.causes import Domain


def classify(
    text: str, *, rules: Iterable[Rule] | None = None, good: str = "", file: str = ""
) -> Verdict:
    """The verdict on a log.

    Lines that also occur in `good`, an earlier attempt that went well, are no evidence.
    """
    chosen = shipped_rules() if rules is None else rules
    usual = usual_lines(good) if good else frozenset()
    return judge(find_evidence(text, chosen, usual=usual, file=file))


def classify_exit(code: int, *, rules: Iterable[Rule] | None = None) -> Verdict:
    """The verdict where only an exit status is known; negative is a signal, as in subprocess."""
    return classify(exit_text(code), rules=rules, file="exit status")


def exit_text(code: int) -> str:
    """An exit status in the words of torch's elastic agent, which the rules know."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"exitcode  : {code} ({name})"


def cause_of(verdict: Verdict) -> tuple[str | None, Domain | None]:
    """Cause and domain of an attempt for the ledger; None for what is not known."""
    cause = None if verdict.category == UNKNOWN else verdict.category
    return cause, None if verdict.domain == UNKNOWN else verdict.domain


@lru_cache(maxsize=1024)  # readers of live runs ask again at each look
def domain_of_exception(text: str) -> Domain | None:
    """The domain of an exception that ended a script, written as `ValueError: bad loss`.

    An exception that no rule knows is the script's own: `user`. None where the text only says
    that a process failed.
    """
    verdict = classify(text)
    if verdict.domain != UNKNOWN:
        return verdict.domain
    return "user" if verdict.evidence is None else None
