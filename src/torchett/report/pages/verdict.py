"""Verdict and why: what a job lost, in sentences."""

from torchett.ledger.ledger import Ledger
from torchett.model.durations import duration
from torchett.report.words import percent, plural

_LEAST = 0.002  # of all: below this a loss is not worth a line


def verdict(ledger: Ledger) -> str:
    """One sentence on the whole job."""
    whole = ledger.rank_ns
    if not whole:
        return "Nothing has been recorded yet."
    groups = ledger.groups
    failed = groups["recover"] + groups["unsaved"]
    losses = {
        "failures": failed,
        "start-up": groups["start"],
        "pauses in the loop": groups["in_loop"],
        "shutdown": groups["shutdown"],
        "unattributed time": groups["unattributed"],
    }
    worst = sorted(losses.items(), key=lambda item: -item[1])[:2]
    said = [f"{name} {percent(ns, whole)}" for name, ns in worst if ns > _LEAST * whole]
    head = f"{percent(groups['effective'], whole)} of the time was training whose progress was kept"
    return f"{head}; most went to {' and '.join(said)}." if said else f"{head}."


def why(ledger: Ledger) -> list[str]:
    """Facts behind the verdict, in full sentences."""
    facts = []
    if ledger.number_of_failures or ledger.failures["user"]:
        count = sum(ledger.failures.values())
        by = [f"{n} {domain}" for domain, n in ledger.failures.items() if n]
        line = f"{plural(count, 'failure')} ({', '.join(by)})"
        if times := ledger.time_to_recover_ns:
            line += f"; training went on after {duration(sum(times) // len(times))} on average"
        facts.append(line + ".")
    if ledger.losses:
        steps = sum(loss.last_step - loss.first_step + 1 for loss in ledger.losses)
        facts.append(f"{plural(steps, 'step')} had to be trained again: they were not saved.")
    if ledger.time_to_start_ns is not None:
        facts.append(f"The first step began {duration(ledger.time_to_start_ns)} after allocation.")
    if ledger.at_risk_ns:
        facts.append(
            f"A failure now would lose {duration(ledger.at_risk_ns // max(ledger.ranks, 1))}"
            " of training on every rank."
        )
    return facts
