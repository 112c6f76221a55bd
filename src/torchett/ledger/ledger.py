"""The ledger: the account of every nanosecond of a job."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchett.ledger.rules.window import Tenure, Window
from torchett.model.causes import DOMAINS, Domain, domain_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Steps of an attempt that were lost when attempt `resumed` took up (None: at the end)."""

    attempt: int
    resumed: int | None
    first_step: int
    last_step: int
    net_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLedger:
    """One attempt's part of the ledger."""

    tenure: Tenure
    first_step: int | None
    progress_ns: int | None  # when it began to make progress
    last_end_ns: int | None  # when its last step ended
    tree: dict[str, dict[str, int]]

    @property
    def accounts(self) -> dict[str, int]:
        return leaves(self.tree)

    @property
    def groups(self) -> dict[str, int]:
        return branches(self.tree)

    @property
    def domain(self) -> Domain | None:
        """The domain of its failure; None if it did not fail."""
        if not self.tenure.failed:
            return None
        attempt = self.tenure.attempt
        return domain_of(attempt.outcome, attempt.cause, attempt.domain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A settled job. Integer nanoseconds; the tree's leaves sum to rank_ns."""

    job: str
    ranks: int
    window: Window
    tree: dict[str, dict[str, int]]  # group → account → ns; every group is there
    attempts: Sequence[AttemptLedger]
    losses: tuple[Loss, ...]
    time_to_start_ns: int | None
    time_to_recover_ns: tuple[int, ...]
    at_risk_ns: int
    estimated_ns: int
    last_step: int | None
    last_durable_step: int

    @property
    def rank_ns(self) -> int:
        return self.window.rank_ns

    @property
    def accounts(self) -> dict[str, int]:
        return leaves(self.tree)

    @property
    def groups(self) -> dict[str, int]:
        return branches(self.tree)

    @property
    def window_ns(self) -> int:
        return self.window.end_ns - self.window.start_ns

    @property
    def ett_percent(self) -> float:
        """Rule 5."""
        return 100 * self.accounts.get("effective", 0) / self.rank_ns if self.rank_ns else 0.0

    @property
    def failures(self) -> dict[str, int]:
        """Rule 6: attempts that ended without success or vanished, by domain."""
        counts: dict[str, int] = dict.fromkeys(DOMAINS, 0)
        for tenure in self.window.tenures:
            if tenure.failed:
                attempt = tenure.attempt
                counts[domain_of(attempt.outcome, attempt.cause, attempt.domain)] += 1
        return counts

    @property
    def number_of_failures(self) -> int:
        counts = self.failures
        return counts["infra"] + counts["scheduler"]

    @property
    def failures_said(self) -> str:
        """As every page shows it: `2`, or `0 (and 1 by the user)`."""
        by_user = self.failures["user"]
        return f"{self.number_of_failures}" + (f" (and {by_user} by the user)" if by_user else "")

    def to_json(self) -> dict[str, Any]:
        """The object that `ett report --json` prints: seconds, exact to the microsecond."""
        return {
            "job": self.job,
            "ett_percent": self.ett_percent,
            "window_s": seconds(self.window_ns),
            "queue_s": seconds(self.window.queue_ns),
            "ranks": self.ranks,
            "attempts": len(self.window.tenures),
            "failures": self.failures,
            "time_to_start_s": (
                None if self.time_to_start_ns is None else seconds(self.time_to_start_ns)
            ),
            "time_to_recover_s": [seconds(ns) for ns in self.time_to_recover_ns],
            "at_risk_s": seconds(self.at_risk_ns),
            "estimated_s": seconds(self.estimated_ns),
            "requeue_s": seconds(self.window.requeue_ns),
            "last_step": self.last_step,
            "rank_seconds": seconds(self.rank_ns),
            "accounts": {name: seconds(ns) for name, ns in self.accounts.items() if ns},
            "groups": {name: seconds(ns) for name, ns in self.groups.items()},
        }


def leaves(tree: dict[str, dict[str, int]]) -> dict[str, int]:
    """Account → ns over all groups (a start account may be in two), zeros left out."""
    total: dict[str, int] = {}
    for accounts in tree.values():
        for name, ns in accounts.items():
            total[name] = total.get(name, 0) + ns
    return {name: ns for name, ns in total.items() if ns}


def branches(tree: dict[str, dict[str, int]]) -> dict[str, int]:
    """Group → ns."""
    return {group: sum(accounts.values()) for group, accounts in tree.items()}


def seconds(ns: int) -> float:
    """Nanoseconds as seconds, as near as a float comes."""
    return ns / 1e9
