"""The ledger, the slow and obvious way: the rules of the design, one tick at a time.

The accounting kernel sweeps over arrays; this file shares no idea with it. It cuts the time of
every rank into ticks, asks of each tick "which account, by the first rule that fits?", writes the
answer into a book, and adds up the book. Whoever doubts the kernel reads this file beside the
rules.

    allocated  start                               end
    |          |=pt2_compile=|--step--| |-step-|...|    what a rank of a failed attempt recorded
    hhhhhhhhhhhcccccccccccccceeeeeeeeeooeeeeeeedddd     one letter for each tick's account

Times become integer nanoseconds after the earliest time of any kind in the file, and all of them
must be multiples of the tick.

Where the rules leave a choice, this file decides:

- A record lies wholly outside what its attempt owns, lo..hi, if it ends before lo or begins after
  hi; one that has length also if it ends at lo or begins at hi. It is then as if never written,
  but its times still count for how long a vanished attempt or a live job was seen.
- First, last, innermost: all order is by recorded times. Only results are clipped to lo..hi.
- Two executions of one index that begin together: the rank's first step is the one that ends first.
- Inside a step, all time booked effective or unsaved on that rank is its net time, whichever of
  several overlapping steps took it.
- A checkpoint counts whatever the time at which it became durable.
- An effective execution counts for last_step even where spans or other steps cover all of it.
- x-NAME is judged instant by instant: before the begin of the rank's first step it belongs to the
  start, later to the loop, even within one span.
- A file without attempts has an empty window: every number is 0, and nothing ever started.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

Event = dict[str, Any]

START = (
    "scheduling",
    "hardware_setup",
    "launcher_init",
    "imports",
    "device_init",
    "process_group_init",
    "preproc_creation",
    "train_module_creation",
    "init_plugins",
    "pre_train",
    "get_first_batch_data",
    "checkpoint_restore",
    "pt2_compile",
)
IN_LOOP = ("checkpoint_blocked", "recompile", "data_wait", "evaluation", "other_in_loop")
SHUTDOWN = ("final_checkpoint", "publish", "teardown")
GROUPS = ("effective", "start", "recover", "in_loop", "shutdown", "unsaved", "unattributed")

TIME_KEYS = {
    "attempt_start": ("t", "submitted", "allocated"),
    "span": ("t0", "t1"),
    "step": ("t0", "t1"),
    "checkpoint": ("durable",),
    "attempt_end": ("t",),
    "now": ("t",),
}

CAUSES = {
    "infra": (
        "gpu_ecc gpu_nvlink gpu_fell_off_bus gpu_driver_fault gpu_unavailable ib_network "
        "nccl_timeout nccl_remote_peer rendezvous_store host_oom_kill dataloader_shm "
        "node_failure k8s_eviction storage_full storage_io remote_storage_timeout "
        "checkpoint_corrupt"
    ),
    "scheduler": "preemption requeue time_limit external_sigterm",
    "user": (
        "user_cancel cuda_oom cuda_illegal_access cuda_device_assert nan_loss import_error "
        "user_code_exception permission_denied checkpoint_incompatible port_in_use"
    ),
}
DOMAIN_OF_CAUSE = {cause: domain for domain, causes in CAUSES.items() for cause in causes.split()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one rank said about t0..t1; `line` is its place in the file."""

    rank: int
    t0: int
    t1: int
    line: int

    def covers(self, instant: int) -> bool:
        return self.t0 <= instant < self.t1


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(Record):
    account: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Record):
    index: int


AnyRecord = TypeVar("AnyRecord", bound=Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt, the time lo..hi it owns, and the records that touch that time."""

    start: int
    lo: int
    hi: int
    ranks: int
    outcome: str  # success, failed, preempted, vanished or running
    domain: str | None  # whose failure it was, if it was one
    spans: tuple[Span, ...]  # foreground only: a background span never takes time
    steps: tuple[Step, ...]
    checkpoints: tuple[int, ...]
    from_peer: bool  # its state came from a replica group that trained on

    def first_step(self, rank: int) -> Step | None:
        """The rank's step that begins earliest."""
        mine = [step for step in self.steps if step.rank == rank]
        return min(mine, key=lambda step: (step.t0, step.index, step.t1), default=None)

    def last_step(self, rank: int) -> Step | None:
        """The rank's step that ends latest."""
        mine = [step for step in self.steps if step.rank == rank]
        return max(mine, key=lambda step: step.t1, default=None)

    def resumes_at(self) -> int | None:
        """The index of the first step of any rank: r in the rule of survival, if there is one."""
        if not self.steps or self.from_peer:
            return None
        return min(self.steps, key=lambda step: (step.t0, step.index)).index

    def clip(self, time: int) -> int:
        return min(max(time, self.lo), self.hi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """One line of the book: where one tick of one rank went."""

    attempt: int  # position among the attempts, not the number
    rank: int
    instant: int
    account: str
    group: str
    step: Step | None  # the step that took the tick, if one did


def oracle(events: list[Event], tick_ns: int = 1) -> dict[str, Any]:
    """The report on one valid events/1 file, all times in integer nanoseconds."""
    (job,) = [event for event in events if event["event"] == "job"]
    clock = clock_of(events)
    for event in events:
        for time in times_of(event, clock):
            assert time % tick_ns == 0, (
                f"{time} ns is no multiple of the tick, {tick_ns} ns: {event}"
            )

    attempts = read_attempts(events, job["ranks"], clock)
    durable = last_durable_checkpoint(attempts)
    book = write_book(attempts, durable, tick_ns)

    accounts = Counter(tick.account for tick in book)
    groups = Counter(tick.group for tick in book)
    domains = Counter(attempt.domain for attempt in attempts if attempt.domain)
    live = bool(attempts) and attempts[-1].outcome == "running"
    at_risk = [
        tick
        for tick in book
        if live and tick.account == "effective" and tick.step and tick.step.index > durable
    ]
    survivors = [
        step.index
        for position, attempt in enumerate(attempts)
        for step in attempt.steps
        if not is_lost(step.index, position, attempts, durable)
    ]
    began = [
        progress_begins(position, attempts, book, tick_ns) for position in range(len(attempts))
    ]
    with_steps = [position for position, attempt in enumerate(attempts) if attempt.steps]
    recoveries = []
    for earlier, later in pairwise(with_steps):
        stopped = max(step.t1 for step in attempts[earlier].steps)
        recoveries.append(known(began[later]) - attempts[earlier].clip(stopped))

    return {
        "job": job["job"],
        "ett_percent": 100 * accounts["effective"] / len(book) if book else 0.0,
        "window_ns": attempts[-1].hi - attempts[0].lo if attempts else 0,
        "queue_ns": queue_ns(events, clock),
        "ranks": job["ranks"],
        "attempts": len(attempts),
        "failures": {domain: domains[domain] for domain in CAUSES},
        "time_to_start_ns": known(began[with_steps[0]]) - attempts[0].lo if with_steps else None,
        "time_to_recover_ns": recoveries,
        "at_risk_ns": len(at_risk) * tick_ns,
        "requeue_ns": sum(later.lo - earlier.hi for earlier, later in pairwise(attempts)),
        "last_step": max(survivors, default=None),
        "rank_ns": sum((attempt.hi - attempt.lo) * attempt.ranks for attempt in attempts),
        "accounts": {account: ticks * tick_ns for account, ticks in sorted(accounts.items())},
        "groups": {group: groups[group] * tick_ns for group in GROUPS},
    }


# Reading the file -------------------------------------------------------------------------------


def clock_of(events: Iterable[Event]) -> Callable[[float], int]:
    """A function from the file's seconds to nanoseconds after its earliest time."""
    seconds = [
        event[key] for event in events for key in TIME_KEYS.get(event["event"], ()) if key in event
    ]
    earliest = min(seconds, default=0.0)
    return lambda time: round((time - earliest) * 1e9)


def times_of(event: Event, clock: Callable[[float], int]) -> list[int]:
    """Every time the event speaks of."""
    return [clock(event[key]) for key in TIME_KEYS.get(event["event"], ()) if key in event]


def queue_ns(events: Iterable[Event], clock: Callable[[float], int]) -> int:
    """The time the first attempt waited for its hardware, 0 if it does not say."""
    starts = [event for event in events if event["event"] == "attempt_start"]
    first: Event = min(starts, key=lambda event: event["attempt"], default={})
    if "submitted" not in first:
        return 0
    return hardware_at(first, clock) - clock(first["submitted"])


def hardware_at(start: Event, clock: Callable[[float], int]) -> int:
    """When an attempt had its hardware: at its allocation, else at its start."""
    return clock(start["allocated"] if "allocated" in start else start["t"])


def read_attempts(
    events: list[Event], job_ranks: int, clock: Callable[[float], int]
) -> list[Attempt]:
    """The attempts in the order of their numbers, each with what it owns (rule 1)."""
    starts = [event for event in events if event["event"] == "attempt_start"]
    starts.sort(key=lambda event: event["attempt"])
    attempts: list[Attempt] = []
    for position, start in enumerate(starts):
        number = start["attempt"]
        mine = [event for event in events if event.get("attempt") == number]
        end = next((event for event in mine if event["event"] == "attempt_end"), None)

        if end is not None:
            outcome, hi = end["outcome"], clock(end["t"])
        elif position + 1 < len(starts):
            seen = max(time for event in mine for time in times_of(event, clock))
            outcome, hi = "vanished", min(seen, hardware_at(starts[position + 1], clock))
        else:
            now = max(time for event in events for time in times_of(event, clock))
            outcome, hi = "running", now

        from_hardware = position == 0 or "allocated" in start
        lo = hardware_at(start, clock) if from_hardware else attempts[-1].hi

        spans = [
            Span(
                rank=event["rank"],
                t0=clock(event["t0"]),
                t1=clock(event["t1"]),
                line=line,
                account=event["account"],
            )
            for line, event in enumerate(events)
            if event["event"] == "span"
            and event["attempt"] == number
            and not event.get("background", False)
        ]
        steps = [
            Step(
                rank=event["rank"],
                t0=clock(event["t0"]),
                t1=clock(event["t1"]),
                line=line,
                index=event["step"],
            )
            for line, event in enumerate(events)
            if event["event"] == "step" and event["attempt"] == number
        ]
        attempts.append(
            Attempt(
                start=clock(start["t"]),
                lo=lo,
                hi=hi,
                ranks=start.get("ranks", job_ranks),
                outcome=outcome,
                domain=domain_of(outcome, end),
                from_peer=start.get("resumed_from") == "peer",
                spans=tuple(span for span in spans if not is_outside(span, lo, hi)),
                steps=tuple(step for step in steps if not is_outside(step, lo, hi)),
                checkpoints=tuple(
                    event["step"] for event in mine if event["event"] == "checkpoint"
                ),
            )
        )
    return attempts


def is_outside(record: Record, lo: int, hi: int) -> bool:
    """Whether the record lies wholly outside lo..hi; a point on the border is still inside."""
    if record.t1 < lo or record.t0 > hi:
        return True
    return record.t0 < record.t1 and (record.t1 <= lo or record.t0 >= hi)


def domain_of(outcome: str, end: Event | None) -> str | None:
    """Whose failure the end was (rule 6), None if it was no failure."""
    if outcome in ("success", "running"):
        return None
    said = end or {}
    if "domain" in said:
        return str(said["domain"])
    if said.get("cause") in DOMAIN_OF_CAUSE:
        return DOMAIN_OF_CAUSE[said["cause"]]
    return "scheduler" if outcome == "preempted" else "infra"


# Survival (rule 3) ------------------------------------------------------------------------------


def is_redone(index: int, position: int, attempts: Sequence[Attempt]) -> bool:
    """Whether some attempt after this one resumes at the step or below it."""
    resumes = [later.resumes_at() for later in attempts[position + 1 :]]
    return any(resume is not None and resume <= index for resume in resumes)


def last_durable_checkpoint(attempts: Sequence[Attempt]) -> int:
    """The highest checkpointed step that no later attempt went back behind, else -1."""
    valid = [
        index
        for position, attempt in enumerate(attempts)
        for index in attempt.checkpoints
        if not is_redone(index, position, attempts)
    ]
    return max(valid, default=-1)


def is_lost(index: int, position: int, attempts: Sequence[Attempt], durable: int) -> bool:
    """Whether this execution of the step, in the attempt at this position, is unsaved."""
    job_failed = attempts[-1].outcome in ("failed", "preempted")
    return is_redone(index, position, attempts) or (job_failed and index > durable)


# The book (rules 2 and 4) -----------------------------------------------------------------------


def write_book(attempts: Sequence[Attempt], durable: int, tick_ns: int) -> list[Tick]:
    """One line for each tick of each rank of each attempt."""
    book = []
    for position, attempt in enumerate(attempts):
        recovering = any(earlier.steps for earlier in attempts[:position])
        for rank in range(attempt.ranks):
            first, last = attempt.first_step(rank), attempt.last_step(rank)
            spans = [span for span in attempt.spans if span.rank == rank]
            steps = [step for step in attempt.steps if step.rank == rank]
            for instant in range(attempt.lo, attempt.hi, tick_ns):
                taker = None
                span = innermost(spans, instant)
                step = innermost(steps, instant)
                if span is not None:
                    account = span.account
                elif instant < attempt.start:
                    account = "hardware_setup" if position == 0 else "restart_gap"
                elif step is not None:
                    taker = step
                    lost = is_lost(step.index, position, attempts, durable)
                    account = "unsaved" if lost else "effective"
                elif first is None or last is None or instant < first.t0:
                    # A rank without any record has no step either, so it ends up here too.
                    account = "unattributed"
                elif instant < last.t1:
                    account = "other_in_loop"
                elif attempt.outcome == "success":
                    account = "teardown"
                elif attempt.outcome == "running":
                    account = "other_in_loop"
                else:
                    account = "detect"
                book.append(
                    Tick(
                        attempt=position,
                        rank=rank,
                        instant=instant,
                        account=account,
                        group=group_of(
                            account,
                            before_first_step=first is None or instant < first.t0,
                            recovering=recovering,
                        ),
                        step=taker,
                    )
                )
    return book


def innermost(records: Iterable[AnyRecord], instant: int) -> AnyRecord | None:
    """The record at the instant that began last; tie: that ends first; tie: the later line.

    |-----A------|
       |--B--|
    AAABBBBBBAAAAA
    """
    there = [record for record in records if record.covers(instant)]
    return max(there, key=lambda record: (record.t0, -record.t1, record.line), default=None)


def group_of(account: str, *, before_first_step: bool, recovering: bool) -> str:
    """The group that an account's tick belongs to."""
    if account in ("effective", "unsaved", "unattributed"):
        return account
    if account in ("detect", "regroup"):
        return "recover"
    if account == "refused":
        return "unsaved"
    if account in IN_LOOP:
        return "in_loop"
    if account in SHUTDOWN:
        return "shutdown"
    if account.startswith("x-") and not before_first_step:
        return "in_loop"
    assert account in START or account == "restart_gap" or account.startswith("x-"), account
    return "recover" if recovering else "start"


def progress_begins(
    position: int, attempts: Sequence[Attempt], book: Iterable[Tick], tick_ns: int
) -> int | None:
    """When the attempt began to train: the end of its first step, less the step's net time.

    |=======pt2_compile=======|--step--|     a first step that compiles
                              ^ progress begins, although the step began long before
    """
    attempt = attempts[position]
    firsts = [attempt.first_step(rank) for rank in range(attempt.ranks)]
    ranked = [step for step in firsts if step is not None]
    if not ranked:
        return None
    first = min(ranked, key=lambda step: (step.t1, step.rank))
    net = [
        tick
        for tick in book
        if tick.attempt == position
        and tick.rank == first.rank
        and first.covers(tick.instant)
        and tick.account in ("effective", "unsaved")
    ]
    return attempt.clip(first.t1) - len(net) * tick_ns


def known(time: int | None) -> int:
    """The time, which an attempt with steps always has."""
    assert time is not None
    return time


# What the random histories exercise -------------------------------------------------------------


def main(count: int = 500) -> None:
    """Checks the sums of some random histories and prints how often each thing occurred."""
    import random

    from histories import TICK_NS, random_history

    seen: Counter[str] = Counter()
    for seed in range(count):
        events = random_history(random.Random(seed))
        report = oracle(events, TICK_NS)
        rank_ns, accounts, groups = report["rank_ns"], report["accounts"], report["groups"]
        assert sum(accounts.values()) == rank_ns, f"seed {seed}: {report}"
        assert sum(groups.values()) == rank_ns, f"seed {seed}: {report}"
        percent = 100 * groups["effective"] / rank_ns if rank_ns else 0.0
        assert abs(report["ett_percent"] - percent) < 1e-9, f"seed {seed}: {report}"
        seen.update(features(events, report))

    print(f"{count} random histories; the share in which each thing occurs:")
    for feature, times in sorted(seen.items()):
        print(f"{100 * times / count:7.1f}%  {feature}")


def features(events: list[Event], report: dict[str, Any]) -> set[str]:
    """The accounts, groups, numbers and shapes that occur in one history."""
    found = {f"account {account}" for account in report["accounts"]}
    found |= {f"group {group}" for group, time in report["groups"].items() if time}
    found |= {f"failure {domain}" for domain, times in report["failures"].items() if times}
    found |= {f"number {key}" for key, value in report.items() if key.endswith("_ns") and value}
    found |= {f"no {key}" for key in ("time_to_start_ns", "last_step") if report[key] is None}
    found.add(f"attempts {report['attempts']}")

    attempts = read_attempts(events, report["ranks"], clock_of(events))
    found |= {f"outcome {attempt.outcome}" for attempt in attempts}
    written = Counter(event["event"] for event in events)
    written["span"] -= sum(event.get("background", False) for event in events)
    kept = Counter(span=sum(len(attempt.spans) for attempt in attempts))
    kept["step"] = sum(len(attempt.steps) for attempt in attempts)
    found |= {f"shape {kind} wholly outside" for kind in kept if written[kind] > kept[kind]}
    numbers = [event["attempt"] for event in events if event["event"] == "attempt_start"]
    shapes = {
        "background span": any(event.get("background") for event in events),
        "now": "now" in written,
        "numbers missing": sorted(numbers) != list(range(len(numbers))),
        "shuffled": events[0]["event"] != "job",
    }
    found |= {f"shape {shape}" for shape, there in shapes.items() if there}
    if attempts:
        durable = last_durable_checkpoint(attempts)
        if durable >= 0:
            found.add("survival: a durable checkpoint")
        if durable < max((index for a in attempts for index in a.checkpoints), default=-1):
            found.add("survival: a void checkpoint")
    for position, attempt in enumerate(attempts):
        for step in attempt.steps:
            if is_redone(step.index, position, attempts):
                found.add("survival: lost to a resume")
            elif is_lost(step.index, position, attempts, durable):
                found.add("survival: lost to a failed last attempt")
        for records in (attempt.spans, attempt.steps):
            found |= record_shapes(records, attempt)
        ranks = {record.rank for record in (*attempt.spans, *attempt.steps)}
        if len(ranks) < attempt.ranks:
            found.add("shape rank without foreground record")
        if not attempt.steps:
            found.add("shape attempt without steps")
        if attempt.lo == attempt.hi:
            found.add("shape attempt that owns nothing")
        if attempt.ranks != report["ranks"]:
            found.add("shape attempt with its own ranks")
    return found


def record_shapes(records: Sequence[Record], attempt: Attempt) -> set[str]:
    """How the records of one kind lie to each other and to what their attempt owns."""
    found = set()
    for one in records:
        kind = type(one).__name__.lower()
        if one.t0 == one.t1:
            found.add(f"shape {kind} of no length")
        if one.t0 < attempt.lo or one.t1 > attempt.hi:
            found.add(f"shape {kind} partly outside")
        for other in records:
            if other.rank != one.rank or other.line <= one.line:
                continue
            if (one.t0, one.t1) == (other.t0, other.t1):
                found.add(f"shape {kind}s with equal times")
            elif one.t0 == other.t0:
                found.add(f"shape {kind}s that begin together")
            elif one.t1 == other.t1:
                found.add(f"shape {kind}s that end together")
            elif max(one.t0, other.t0) < min(one.t1, other.t1):
                nested = (one.t0 < other.t0) == (one.t1 > other.t1)
                found.add(f"shape {kind}s that {'nest' if nested else 'cross'}")
    return found


if __name__ == "__main__":
    main()
