"""The verdict on a failure, from the table and what was decided before: a pure function.

failure ── the row that fits ─┬─ its verdict …
                              ├─ … unless the same error came from the same place before
history ── since the last ────┼─ … or the row's budget is used up
           durable progress   ├─ … or this node began too many failures
                              └─ … or --max-restarts is
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torchett.failures.vocabulary import UNKNOWN, domain_of_category
from torchett.model.restarts import Outlook
from torchett.restarts.history import Fact, charged_lives, roots, without_progress
from torchett.restarts.table import Row, Table

_OF_MACHINES = ("infra", "unknown")  # domains of failures that a node may be to blame for
_LONGEST = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What ended a life, as far as this node knows."""

    attempt: int
    restart: int
    category: str = UNKNOWN
    outlook: Outlook = Outlook.BACK_OFF  # the classifier's
    root: bool = True
    rank: int | None = None
    text: str = ""
    file: str = ""
    place: str = ""
    node: int = 0
    nodes: int = 1
    by: str = "launcher"  # or agent
    shared_limit: bool = True  # the launcher and its agents draw on the same --max-restarts

    @property
    def domain(self) -> str:
        return domain_of_category(self.category)

    def __str__(self) -> str:
        where = "" if self.rank is None else f" on rank {self.rank}"
        said = self.text if len(self.text) <= _LONGEST else f"{self.text[: _LONGEST - 1]}…"
        return f"{self.category}{where}" + (f" ({said})" if said else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The verdict, the row that led to it, and whether the restart counts."""

    outlook: Outlook
    why: str
    row: str
    pause_s: float = 0.0
    charged: bool = False
    limit_reached: bool = False


def decide(
    failure: Failure, table: Table, history: Sequence[Fact], durable_step: int, limit: int
) -> Ruling:
    """What to do after this failure; `limit` is how many restarts the user asked for."""
    row = table.row(failure.category, failure.domain, failure.text)
    counted = without_progress(history, durable_step)
    before = roots(fact for fact in counted if fact.life != (failure.attempt, failure.restart))
    if stopped := _stopped(failure, row, table, before):
        return stopped
    verdict = row.verdict or failure.outlook
    if verdict in (Outlook.STOP, Outlook.REPLACE_NODE):
        return _ruling(failure, row, verdict, row.why)
    used = _used(failure, counted)
    if row.charge and len(used) >= limit:
        left = f"all {limit} restarts without durable progress are used up"
        return _ruling(failure, row, Outlook.STOP, left, limit_reached=True)
    pause_s = _pause_s(row, sum(fact.row == row.name for fact in before))
    if verdict is Outlook.RESTART_NOW and pause_s:
        verdict = Outlook.BACK_OFF
    said = f"restart {len(used) + 1} of {limit}" if row.charge else "it does not count"
    return _ruling(failure, row, verdict, said, pause_s=pause_s, charged=row.charge)


def _stopped(failure: Failure, row: Row, table: Table, before: Sequence[Fact]) -> Ruling | None:
    """The ruling where failures before this one forbid another attempt here."""
    same = sum(fact.place == failure.place for fact in before) if failure.place else 0
    if row.same_place is not None and same >= row.same_place:
        said = f"the same error at the same place, {same + 1} times without durable progress"
        return _ruling(failure, row, row.then, said)
    in_row = sum(fact.row == row.name for fact in before)
    if row.budget is not None and in_row >= row.budget:
        said = f"its budget of {row.budget} restarts without durable progress is used up"
        return _ruling(failure, row, row.then, said)
    if failure.nodes > 1 and failure.root and failure.domain in _OF_MACHINES:
        here = 1 + sum(
            fact.node == failure.node and fact.root and fact.domain in _OF_MACHINES
            for fact in before
        )
        elsewhere = any(fact.node != failure.node and fact.root for fact in before)
        if here >= table.node_failures and not elsewhere:
            said = f"node {failure.node} began {here} failures without durable progress"
            return _ruling(failure, row, Outlook.REPLACE_NODE, said)
    return None


def _used(failure: Failure, counted: Sequence[Fact]) -> set[tuple[int, int]]:
    """The lives after which a restart was made that counts against the limit of this one."""
    if not failure.shared_limit:  # torchrun has restarts of its own, anew in each attempt
        counted = [fact for fact in counted if fact.by == failure.by]
        if failure.by == "agent":
            counted = [fact for fact in counted if fact.attempt == failure.attempt]
    return charged_lives(counted) - {(failure.attempt, failure.restart)}


def _pause_s(row: Row, times: int) -> float:
    return row.pauses_s[min(times, len(row.pauses_s) - 1)] if row.pauses_s else 0.0


def _ruling(
    failure: Failure,
    row: Row,
    outlook: Outlook,
    said: str,
    *,
    pause_s: float = 0.0,
    charged: bool = False,
    limit_reached: bool = False,
) -> Ruling:
    why = f"{failure}: {said}" if said else str(failure)
    return Ruling(
        outlook=outlook,
        why=why,
        row=row.name,
        pause_s=pause_s,
        charged=charged,
        limit_reached=limit_reached,
    )
