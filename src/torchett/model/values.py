"""The values that rooms exchange: what was observed of a job. Times are integer nanoseconds."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from torchett.model.causes import Domain, Outcome

ResumedFrom = Literal["checkpoint", "memory", "peer", "nothing"]
RESUMED_FROM: tuple[ResumedFrom, ...] = get_args(ResumedFrom)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of one rank's time under an account; a background span takes no time."""

    attempt: int = 0
    rank: int = 0
    account: str
    t0_ns: int
    t1_ns: int
    background: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`count` consecutive steps from `index`, executed by one rank in t0…t1."""

    attempt: int = 0
    rank: int = 0
    index: int
    t0_ns: int
    t1_ns: int
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Progress up to and including `step` was safe at `durable_ns`."""

    attempt: int = 0
    step: int
    durable_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One execution of the job. Without an end, the last attempt still runs; others vanished."""

    number: int
    start_ns: int
    ranks: int
    submitted_ns: int | None = None
    allocated_ns: int | None = None
    end_ns: int | None = None
    outcome: Outcome | None = None
    cause: str | None = None
    domain: Domain | None = None
    failed_rank: int | None = None  # the rank that the cause was seen on
    resumed_from: ResumedFrom | None = None  # where its state came from, if a rank said so


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job by name, with its attempts in order."""

    name: str
    ranks: int
    attempts: tuple[Attempt, ...] = field(default=())
