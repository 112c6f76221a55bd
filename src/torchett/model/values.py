"""The values that travel: what was seen of a job. Times are integer nanoseconds."""

from dataclasses import dataclass, field

from torchett.model.causes import Domain, Outcome


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
    """One try at the job. No end: still running if it is the last, else it vanished."""

    number: int
    start_ns: int
    ranks: int
    submitted_ns: int | None = None
    allocated_ns: int | None = None
    end_ns: int | None = None
    outcome: Outcome | None = None
    cause: str | None = None
    domain: Domain | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job by name, with its attempts in order."""

    name: str
    ranks: int
    attempts: tuple[Attempt, ...] = field(default=())
