"""Hours of a growing job: exact sums at every look, and the right hours once an hour is full."""

import random

import pytest

from torchett.ledger import AccountTable, Books, Rows
from torchett.ledger.history import History
from torchett.ledger.hours import HOUR_NS, HourBooks, hour_sums
from torchett.ledger.ledger import Ledger
from torchett.ledger.rows import Batch
from torchett.model import Attempt, Job, Span, Step

S = 10**9


class Growing:
    """A job of two ranks whose rows come in any order of ranks, a few at a time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.accounts = AccountTable()
        self.books = Books(self.accounts)
        self.parts: list[Rows] = []
        self.attempts = [Attempt(number=0, start_ns=0, ranks=2)]
        self.at = [10 * S, 10 * S]
        self.index = [0, 0]

    def grow(self, rows: int) -> None:
        number = self.attempts[-1].number
        values: list[Span | Step] = []
        for _ in range(rows):
            rank = self.chance.randrange(2)
            begin, took = self.at[rank], self.chance.randrange(1, 900) * S
            self.at[rank] = begin + took
            if self.chance.random() < 0.3:
                account = self.chance.choice(["data_wait", "evaluation", "x-own"])
                values.append(
                    Span(
                        attempt=number, rank=rank, account=account, t0_ns=begin, t1_ns=begin + took
                    )
                )
            else:
                step = Step(
                    attempt=number, rank=rank, index=self.index[rank], t0_ns=begin,
                    t1_ns=begin + took,
                )  # fmt: skip
                self.index[rank] += 1
                values.append(step)
        part = Rows.from_values(values, self.accounts)
        self.parts.append(part)
        self.books.post(Batch(rows=part))

    def fail(self) -> None:
        """The attempt fails; the next begins a little later, a few steps back."""
        end = max(self.at) + 60 * S
        last = self.attempts[-1]
        self.attempts[-1] = Attempt(
            number=last.number, start_ns=last.start_ns, ranks=2, end_ns=end, outcome="failed"
        )
        self.attempts.append(Attempt(number=last.number + 1, start_ns=end + 30 * S, ranks=2))
        self.at = [end + 40 * S] * 2
        self.index = [max(i - 3, 0) for i in self.index]

    @property
    def job(self) -> Job:
        return Job(name="x", ranks=2, attempts=tuple(self.attempts))

    def ledger(self) -> Ledger:
        return self.books.settle(self.job)

    def history(self) -> History:
        return History(job=self.job, rows=Rows.joined(self.parts), accounts=self.accounts)


@pytest.mark.parametrize("seed", range(6))
def test_every_look_sums_to_the_tree_and_an_end_is_exact(seed: int) -> None:
    job, books, asked = Growing(seed), HourBooks(), 0

    def history() -> History:
        nonlocal asked
        asked += 1
        return job.history()

    looks = 120
    for look in range(looks):
        job.grow(job.chance.randrange(1, 4))
        if look in (40, 70):
            job.fail()
        ledger = job.ledger()
        sums = books.sums(ledger, history)
        tree: dict[tuple[str, str], int] = {}
        for (_, group, account), ns in sums.items():
            assert ns > 0
            tree[group, account] = tree.get((group, account), 0) + ns
        whole = {(g, a): ns for g, accounts in ledger.tree.items() for a, ns in accounts.items()}
        assert tree == {key: ns for key, ns in whole.items() if ns}
        last = max(hour for hour, _, _ in sums)
        exact = hour_sums(ledger, job.history)
        assert {hour for hour, _, _ in sums} == {hour for hour, _, _ in exact}
        assert last == (ledger.window.end_ns - 1) // HOUR_NS
    job.fail()
    job.grow(2)
    job.fail()
    assert books.sums(job.ledger(), history) == hour_sums(job.ledger(), job.history)
    assert asked < looks * 0.8


def test_nothing_is_read_again_within_an_hour() -> None:
    job, books = Growing(1), HourBooks()
    job.grow(30)
    books.sums(job.ledger(), job.history)
    at = max(job.at)
    for _ in range(5):
        job.at = [at, at]
        step = Step(rank=0, index=job.index[0], t0_ns=at, t1_ns=at + S)
        job.index[0] += 1
        job.books.post(Batch(rows=Rows.from_values([step], job.accounts)))
        at += S
        if at % HOUR_NS < 10 * S:
            return
        books.sums(job.ledger(), lambda: pytest.fail("asked for the history"))
