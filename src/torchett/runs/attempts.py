"""The attempts of a run, from what launchers and ranks each know of them.

launcher    start ──────────────────────────────────────── end, outcome
agent         └ restart 0 ── ✗ └ restart 1 ───────────────┘
rank          └ life 0 ──────┘ └ life 0 ✗ life 1 ─────────┘    begun anew in the same process
attempts      0 (vanished)       1          2 (ended as the launcher says)
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from torchett.ledger.rules.window import complaint
from torchett.model.causes import Domain
from torchett.model.first_failure import RankEnd, first_failure
from torchett.model.values import RESUMED_FROM, Attempt, ResumedFrom
from torchett.runs.flight_records import Flight, Key
from torchett.runs.launchers import Clocks, Launch, Launches


def numbered(launches: Launches, flights: Iterable[Flight]) -> dict[Key, int]:
    """A number for every attempt; an imported job keeps its own."""
    keys = {flight.key for flight in flights}
    if launches.imported:
        return {(number, 0, 0): number for number, _ in launches.attempts}
    keys |= {(attempt, restart, 0) for attempt, restart in launches.attempts}
    return {key: number for number, key in enumerate(sorted(keys))}


def new_launchers(launches: Launches, numbers: Mapping[Key, int]) -> dict[int, bool]:
    """Whether each attempt was begun by a new launcher; those of which it is unknown are absent."""
    known: dict[int, bool] = {}
    for (attempt, restart, life), number in numbers.items():
        launch = launches.attempts.get((attempt, restart))
        if restart or life:
            known[number] = False
        elif launch is not None and launch.new_launcher is not None:
            known[number] = launch.new_launcher
    return known


def attempts_of(
    launches: Launches, flights: Iterable[Flight], numbers: Mapping[Key, int], clocks: Clocks
) -> tuple[tuple[Attempt, ...], list[str]]:
    """The attempts in order, and what had to be put right to make them follow each other."""
    ranks_of = defaultdict[Key, list[Flight]](list)
    ends_of = defaultdict[Key, list[RankEnd]](list)
    for flight in flights:
        ranks_of[flight.key].append(flight)
        ends_of[flight.key] += _raised(flight, clocks)
    last_life = {key[:2]: key[2] for key in sorted(numbers)}
    last_restart = {key[0]: key[1:] for key in sorted(numbers)}
    for failure in launches.failures:
        where = failure.attempt, failure.restart
        ends_of[*where, last_life.get(where, 0)].append(failure.end)
    widest = max((f.ranks for fs in ranks_of.values() for f in fs), default=1)
    ranks = launches.ranks or widest
    attempts: list[Attempt] = []
    notes: list[str] = []
    for key, number in sorted(numbers.items(), key=lambda item: item[1]):
        is_last_life = last_life[key[:2]] == key[2]
        end = launches.ends.get(key[0]) if last_restart[key[0]] == key[1:] else None
        launch = launches.attempts.get(key[:2])
        if launch is not None:
            launch = _of_life(launch, first=key[2] == 0, last=is_last_life)
        found = _attempt(number, launch, end, ranks_of[key], ranks, clocks)
        if found is not None and not (_launched(launches, key[0]) and is_last_life):
            found = _ended_by_itself(found, ranks_of[key], clocks)
        if found is None:
            continue
        source = _resumed_from(ranks_of[key]) or (launch.resumed_from if launch else None)
        found = replace(found, resumed_from=source)
        found = _with_cause(found, first_failure(ends_of[key]))
        fixed, note = _following(attempts[-1] if attempts else None, found)
        attempts.append(fixed)
        notes += [note] if note else []
    return tuple(attempts), notes


def _launched(launches: Launches, attempt: int) -> bool:
    """Whether a launcher watched this attempt."""
    return attempt in launches.ends or any(number == attempt for number, _ in launches.attempts)


def _of_life(launch: Launch, *, first: bool, last: bool) -> Launch:
    """What the launcher says of one life of the ranks: when the first began, how the last ended."""
    known = launch
    if not first:
        known = replace(known, start_ns=None, submitted_ns=None, allocated_ns=None)
    if not last:
        known = replace(known, end_ns=None, outcome=None, cause=None, domain=None)
    return known


def _resumed_from(flights: Iterable[Flight]) -> ResumedFrom | None:
    """Where the state of these ranks came from, by the lowest rank that says so."""
    for flight in sorted(flights, key=lambda flight: flight.rank):
        for kind, fact in flight.facts:
            if kind == "resumed" and fact.get("from") in RESUMED_FROM:
                source: ResumedFrom = fact["from"]
                return source
    return None


def _attempt(
    number: int,
    launch: Launch | None,
    end: Launch | None,
    flights: list[Flight],
    ranks: int,
    clocks: Clocks,
) -> Attempt | None:
    """One attempt; None if its begin is unknown."""
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
    raised = any({"error", "interrupted"} & set(fact or {}) for fact in exits)
    return replace(attempt, end_ns=max(ends), outcome="failed" if raised else "success")


def _raised(flight: Flight, clocks: Clocks) -> Iterator[RankEnd]:
    """The exception that ended this rank, as its record has it."""
    fact = flight.exit or {}
    if fact.get("error"):
        at = int(fact["exit_ns"]) + clocks.offset_ns(flight.anchor)
        yield RankEnd(rank=flight.rank, cause=str(fact["error"]), t_ns=at, raised=True)


def _with_cause(attempt: Attempt, first: RankEnd | None) -> Attempt:
    """The attempt with what its ranks say of its end, where an exit status says less."""
    if attempt.outcome != "failed" or first is None:
        return attempt
    vague = attempt.cause is None or attempt.cause.startswith("exit_")
    if first.raised:  # Python's own exit status for it, and torchrun's for its ranks'
        vague = attempt.cause in (None, "exit_1")
    if vague:
        domain = attempt.domain or _domain(first)
        return replace(attempt, cause=first.cause, domain=domain, failed_rank=first.rank)
    if attempt.cause == first.cause:
        return replace(attempt, failed_rank=first.rank)
    return attempt


def _domain(end: RankEnd) -> Domain | None:
    """The domain that an exception points to; None without an exception."""
    from torchett.failures.classifier import domain_of_exception

    return domain_of_exception(end.cause) if end.raised else None


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
