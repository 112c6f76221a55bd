"""What each failure cost.

attempt 0  ██████████████████ ✗┄detect┄┐
attempt 1     restart_gap, start again └▒▒▒▒▒▒██████
                             └ unsaved: the steps that attempt 1 had to make again
"""

from dataclasses import dataclass

from torchett.ledger.ledger import Ledger
from torchett.model.accounts import BY_NAME
from torchett.model.causes import Domain


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCost:
    """One failed attempt and the rank-nanoseconds it cost."""

    attempt: int
    state: str
    cause: str | None
    failed_rank: int | None
    domain: Domain
    detect_ns: int
    restart_gap_ns: int
    start_again_ns: int
    unsaved_ns: int
    lost_steps: tuple[int, int] | None  # the first and the last step that was lost

    @property
    def total_ns(self) -> int:
        return self.detect_ns + self.restart_gap_ns + self.start_again_ns + self.unsaved_ns


def failure_costs(ledger: Ledger) -> list[FailureCost]:
    """The cost of every failure, in order of attempts."""
    order = {attempt.tenure.attempt.number: i for i, attempt in enumerate(ledger.attempts)}
    failed = [i for i, tenure in enumerate(ledger.window.tenures) if tenure.failed]
    lost: dict[int, list[tuple[int, int, int]]] = {i: [] for i in failed}
    for loss in ledger.losses:
        before = len(order) if loss.resumed is None else order[loss.resumed]
        blamed = max((i for i in failed if order[loss.attempt] <= i < before), default=None)
        if blamed is not None:
            lost[blamed].append((loss.first_step, loss.last_step, loss.net_ns))
    costs = []
    for i in failed:
        attempt = ledger.attempts[i]
        following = ledger.attempts[i + 1].accounts if i + 1 < len(ledger.attempts) else {}
        domain = attempt.domain
        assert domain is not None
        costs.append(
            FailureCost(
                attempt=attempt.tenure.attempt.number,
                state=attempt.tenure.state,
                cause=attempt.tenure.attempt.cause,
                failed_rank=attempt.tenure.attempt.failed_rank,
                domain=domain,
                detect_ns=attempt.accounts.get("detect", 0),
                restart_gap_ns=following.get("restart_gap", 0),
                start_again_ns=sum(
                    ns
                    for name, ns in following.items()
                    if name in BY_NAME and BY_NAME[name].kind == "start"
                ),
                unsaved_ns=sum(ns for _, _, ns in lost[i]),
                lost_steps=(
                    (min(a for a, _, _ in lost[i]), max(b for _, b, _ in lost[i]))
                    if lost[i]
                    else None
                ),
            )
        )
    return costs
