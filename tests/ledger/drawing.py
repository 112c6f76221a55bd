"""A history drawn by hand, in whole seconds.

settled(
    attempt(0, start=0, end=10, outcome="success"),
    span("imports", 0, 4),
    steps(range(3), t0=4, each=2),
)
"""

from collections.abc import Iterable

from torchett.ledger import AccountTable, History, Ledger, Rows, settle
from torchett.model import Attempt, Checkpoint, Domain, Job, Outcome, Span, Step
from torchett.model.values import ResumedFrom

S = 1_000_000_000
Drawn = Attempt | Span | Step | Checkpoint


def attempt(
    number: int,
    *,
    start: float,
    end: float | None = None,
    outcome: Outcome | None = None,
    ranks: int = 1,
    submitted: float | None = None,
    allocated: float | None = None,
    cause: str | None = None,
    domain: Domain | None = None,
    resumed_from: ResumedFrom | None = None,
) -> Attempt:
    """One attempt; without an end it vanished, or is live if it is the last."""
    return Attempt(
        number=number,
        start_ns=ns(start),
        end_ns=None if end is None else ns(end),
        outcome=outcome,
        ranks=ranks,
        submitted_ns=None if submitted is None else ns(submitted),
        allocated_ns=None if allocated is None else ns(allocated),
        cause=cause,
        domain=domain,
        resumed_from=resumed_from,
    )


def span(
    account: str,
    t0: float,
    t1: float,
    *,
    attempt: int = 0,
    rank: int = 0,
    background: bool = False,
) -> Span:
    """A stretch of a rank's time under an account."""
    return Span(
        attempt=attempt,
        rank=rank,
        account=account,
        t0_ns=ns(t0),
        t1_ns=ns(t1),
        background=background,
    )


def step(
    index: int, t0: float, t1: float, *, attempt: int = 0, rank: int = 0, count: int = 1
) -> Step:
    """One step, or a block of `count` folded ones."""
    return Step(attempt=attempt, rank=rank, index=index, count=count, t0_ns=ns(t0), t1_ns=ns(t1))


def steps(
    indices: Iterable[int], *, t0: float, each: float = 1, attempt: int = 0, rank: int = 0
) -> list[Step]:
    """Steps one right after the other."""
    return [
        step(index, t0 + i * each, t0 + (i + 1) * each, attempt=attempt, rank=rank)
        for i, index in enumerate(indices)
    ]


def saved(step: int, at: float, *, attempt: int = 0) -> Checkpoint:
    """The checkpoint of `step` became durable."""
    return Checkpoint(attempt=attempt, step=step, durable_ns=ns(at))


def history(*drawn: Drawn | list[Step], ranks: int = 1, now: float | None = None) -> History:
    """What was drawn, ready to be settled."""
    items = [item for one in drawn for item in (one if isinstance(one, list) else [one])]
    accounts = AccountTable()
    return History(
        job=Job(
            name="drawn",
            ranks=ranks,
            attempts=tuple(item for item in items if isinstance(item, Attempt)),
        ),
        rows=Rows.from_values((item for item in items if isinstance(item, Span | Step)), accounts),
        accounts=accounts,
        checkpoints=tuple(item for item in items if isinstance(item, Checkpoint)),
        now_ns=None if now is None else ns(now),
    )


def settled(*drawn: Drawn | list[Step], ranks: int = 1, now: float | None = None) -> Ledger:
    """The ledger of what was drawn; its sums are checked on the way."""
    ledger = settle(history(*drawn, ranks=ranks, now=now))
    assert sum(ledger.accounts.values()) == ledger.rank_ns
    assert sum(ledger.groups.values()) == ledger.rank_ns
    return ledger


def accounts(ledger: Ledger) -> dict[str, float]:
    """The ledger's accounts in seconds, those without any left out."""
    return {name: in_seconds(time) for name, time in ledger.accounts.items()}


def groups(ledger: Ledger) -> dict[str, float]:
    """The ledger's groups in seconds, those without any left out."""
    return {name: in_seconds(time) for name, time in ledger.groups.items() if time}


def ns(t: float) -> int:
    return round(t * S)


def in_seconds(time_ns: int) -> float:
    """Exact for the halves and wholes that drawings use."""
    return time_ns / S
