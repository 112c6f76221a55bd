"""Rule 1: which time each attempt owns.

             queue_s          attempt 0                    attempt 1
submitted ┄┄┄┄┄┄┄┄ allocated ─── start ───── end ─────── start ─────── end
                   ╰───────────── owns ─────╯╰──────────── owns ──────╯

                                 end ┄┄ requeue_s ┄┄ allocated ── start ── end
hardware given back in between:                     ╰──────── owns ───────╯
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torchett.model.values import Attempt

State = Literal["success", "failed", "preempted", "vanished", "live"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """What one attempt owns, lo…hi, and how it ended; `position` counts attempts from 0."""

    position: int
    attempt: Attempt
    lo_ns: int
    start_ns: int
    hi_ns: int
    state: State

    @property
    def failed(self) -> bool:
        return self.state not in ("success", "live")

    @property
    def rank_ns(self) -> int:
        return (self.hi_ns - self.lo_ns) * self.attempt.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The job's time from allocation to release."""

    start_ns: int = 0
    end_ns: int = 0
    queue_ns: int = 0
    requeue_ns: int = 0
    tenures: tuple[Tenure, ...] = ()

    @property
    def live(self) -> bool:
        return bool(self.tenures) and self.tenures[-1].state == "live"

    @property
    def rank_ns(self) -> int:
        return sum(tenure.rank_ns for tenure in self.tenures)


def window(
    attempts: Sequence[Attempt],
    latest: Mapping[int, int],
    now_ns: int | None,
    before: Window | None = None,
) -> Window:
    """The window of `attempts` (in order); `latest` is the greatest time seen in each one.

    Tenures of the window `before` are taken over where they are still the same.
    """
    if not attempts:
        return Window()
    known = before.tenures if before is not None else ()
    tenures: list[Tenure] = []
    requeue_ns = 0
    for position, attempt in enumerate(attempts):
        following = attempts[position + 1] if position + 1 < len(attempts) else None
        hi_ns, state = _end(attempt, following, latest, now_ns)
        begin = attempt.start_ns if attempt.allocated_ns is None else attempt.allocated_ns
        lo_ns = begin
        if tenures:
            previous = tenures[-1].hi_ns
            if attempt.allocated_ns is None:
                lo_ns = previous
            else:
                requeue_ns += begin - previous
        same = known[position] if position < len(known) else None
        now = (attempt, lo_ns, hi_ns, state)
        if same is not None and now == (same.attempt, same.lo_ns, same.hi_ns, same.state):
            tenures.append(same)
            continue
        tenures.append(
            Tenure(
                position=position,
                attempt=attempt,
                lo_ns=lo_ns,
                start_ns=attempt.start_ns,
                hi_ns=hi_ns,
                state=state,
            )
        )
    first = tenures[0]
    submitted = first.attempt.submitted_ns
    return Window(
        start_ns=first.lo_ns,
        end_ns=tenures[-1].hi_ns,
        queue_ns=0 if submitted is None else first.lo_ns - submitted,
        requeue_ns=requeue_ns,
        tenures=tuple(tenures),
    )


def _end(
    attempt: Attempt, following: Attempt | None, latest: Mapping[int, int], now_ns: int | None
) -> tuple[int, State]:
    if attempt.end_ns is not None:
        assert attempt.outcome is not None, "an end has an outcome"
        return attempt.end_ns, attempt.outcome
    if following is None:
        seen = max([attempt.start_ns, *latest.values()])
        return (seen if now_ns is None else max(seen, now_ns)), "live"
    bound = following.start_ns if following.allocated_ns is None else following.allocated_ns
    return min(
        max(attempt.start_ns, latest.get(attempt.number, attempt.start_ns)), bound
    ), "vanished"


def complaint(previous: Attempt | None, attempt: Attempt) -> str | None:
    """Why `attempt` cannot follow `previous`, as "expected …"; None if it can."""
    submitted, allocated = attempt.submitted_ns, attempt.allocated_ns
    if allocated is not None and allocated > attempt.start_ns:
        return "expected allocated ≤ t"
    if submitted is not None and submitted > (attempt.start_ns if allocated is None else allocated):
        return "expected submitted ≤ allocated ≤ t"
    if attempt.end_ns is not None and attempt.end_ns < attempt.start_ns:
        return f"expected attempt {attempt.number} to end after its start"
    if previous is None:
        return None
    over = previous.start_ns if previous.end_ns is None else previous.end_ns
    if attempt.start_ns < over:
        return f"expected attempt {attempt.number} to start after attempt {previous.number} is over"
    if allocated is not None and allocated < over:
        return (
            f"expected attempt {attempt.number} to be allocated after attempt"
            f" {previous.number} is over"
        )
    return None
