"""The attempts of a run, from what launchers and ranks each know of them.

launcher    start ──────────────────────────────────────── end, outcome
agent         └ restart 0 ── ✗ └ restart 1 ───────────────┘
attempts      0 (vanished)       1 (ended as the launcher says)
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from torchett.ledger.window import complaint
from torchett.model.values import Attempt
from torchett.runs.flights import Flight
from torchett.runs.launchers import Clocks, Launch, Launches

Key = tuple[int, int]  # the launcher's attempt, the agent's restart inside it


def numbered(launches: Launches, flights: Iterable[Flight]) -> dict[Key, int]:
    """A number for every attempt; an imported job keeps its own."""
    keys = {(flight.attempt, flight.restart) for flight in flights}
    if launches.imported:
        return {(number, 0): number for number, _ in launches.attempts}
    keys |= set(launches.attempts)
    return {key: number for number, key in enumerate(sorted(keys))}


def attempts_of(
    launches: Launches, flights: Iterable[Flight], numbers: Mapping[Key, int], clocks: Clocks
) -> tuple[tuple[Attempt, ...], list[str]]:
    """The attempts in order, and what had to be put right to make them follow each other."""
    ranks_of = defaultdict[Key, list[Flight]](list)
    for flight in flights:
        ranks_of[flight.attempt, flight.restart].append(flight)
    last_restart = dict(sorted(numbers))
    widest = max((f.ranks for fs in ranks_of.values() for f in fs), default=1)
    ranks = launches.ranks or widest
    attempts: list[Attempt] = []
    notes: list[str] = []
    for key, number in sorted(numbers.items(), key=lambda item: item[1]):
        final = last_restart[key[0]] == key[1]
        end = launches.ends.get(key[0]) if final else None
        found = _attempt(number, launches.attempts.get(key), end, ranks_of[key], ranks, clocks)
        if found is not None and not _launched(launches, key[0]):
            found = _ended_by_itself(found, ranks_of[key], clocks)
        if found is None:
            continue
        fixed, note = _following(attempts[-1] if attempts else None, found)
        attempts.append(fixed)
        notes += [note] if note else []
    return tuple(attempts), notes


def _launched(launches: Launches, attempt: int) -> bool:
    """Whether a launcher watched this attempt."""
    return attempt in launches.ends or any(number == attempt for number, _ in launches.attempts)


def _attempt(
    number: int,
    launch: Launch | None,
    end: Launch | None,
    flights: list[Flight],
    ranks: int,
    clocks: Clocks,
) -> Attempt | None:
    """One attempt; None if nobody knows when it began."""
    began = [flight.began_ns + clocks.offset_ns(flight.anchor) for flight in flights]
    wide = max((flight.ranks for flight in flights), default=ranks)
    if launch is not None and launch.start_ns is not None:
        attempt = Attempt(
            number=number,
            start_ns=launch.start_ns,
            submitted_ns=launch.submitted_ns,
            allocated_ns=launch.allocated_ns,
            ranks=launch.ranks or wide,
        )
    elif began:
        attempt = Attempt(number=number, start_ns=min(began), ranks=wide)
    else:
        return None
    over = end if launch is None or launch.end_ns is None else launch
    if over is None:
        return attempt
    return replace(
        attempt, end_ns=over.end_ns, outcome=over.outcome, cause=over.cause, domain=over.domain
    )


def _ended_by_itself(attempt: Attempt, flights: list[Flight], clocks: Clocks) -> Attempt:
    """No launcher saw it: it is over when all its ranks have said so, and failed if one raised."""
    exits = [flight.exit for flight in flights]
    if len({f.rank for f in flights}) < attempt.ranks or None in exits:
        return attempt
    ends = [f.exit["exit_ns"] + clocks.offset_ns(f.anchor) for f in flights if f.exit]
    raised = any("error" in (fact or {}) for fact in exits)
    return replace(
        attempt,
        end_ns=max(ends),
        outcome="failed" if raised else "success",
        cause="user_code_exception" if raised else None,
    )


def _following(previous: Attempt | None, attempt: Attempt) -> tuple[Attempt, str | None]:
    """The attempt moved, if it must be, so that it follows the one before."""
    problem = complaint(previous, attempt)
    if problem is None:
        return attempt, None
    floor = attempt.start_ns
    if previous is not None:
        over = previous.start_ns if previous.end_ns is None else previous.end_ns
        floor = max(floor, over)
    end = None if attempt.end_ns is None else max(attempt.end_ns, floor)
    moved = replace(attempt, start_ns=floor, end_ns=end, submitted_ns=None, allocated_ns=None)
    return moved, f"attempt {attempt.number}: {problem}; its clock is off, so it was moved to fit"
