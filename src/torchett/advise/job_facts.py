"""The input of advice: the seconds a job lost, by account and by phase of the job.

    attempt 0  ▒first▒███job███ ✗         the first start, then the loop
    attempt 1        ▒again▒███job███ ✗   the running launcher started the ranks again
    attempt 2    ▒▒anew▒▒███job███▂       a new launcher started the ranks

The key of a loss is (phase, account); its unit is rank-seconds. Start accounts have the phases
`first`, `again` and `anew`; all other accounts have the phase `job`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import numpy as np

from torchett.ledger.history import History
from torchett.ledger.ledger import AttemptLedger, Ledger
from torchett.ledger.metrics.losses import failure_costs
from torchett.ledger.metrics.saves import SaveCosts, measure_saves
from torchett.ledger.metrics.spread import net_steps
from torchett.model.accounts import BY_NAME

Phase = Literal["first", "again", "anew", "job"]
Key = tuple[Phase, str]
STARTS: Final[tuple[Phase, ...]] = ("first", "again", "anew")
_NO_LAUNCHER_S = 0.15  # of each rank: the start of a launcher takes longer
_COLD = 2.0  # a compile that takes this many times the shortest one was not cached
_PER_START = frozenset({"restart_gap", "unattributed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Facts of a run that are not in its ledger: from the notes of levers and from logs."""

    on: frozenset[str] = frozenset()  # levers that were on
    cold: Mapping[int, bool] = field(default_factory=dict)  # attempt → its caches were empty
    new_launchers: Mapping[int, bool] = field(default_factory=dict)  # attempt → one began it
    workers: int | None = None  # of each rank's loader, if the command line has them
    cured_s: float | None = None  # rank-seconds of recompiles that dynamic sources would prevent
    tuned_s: float | None = None  # rank-seconds of tuning kernels in first compiles


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """The facts of one job. Seconds are rank-seconds unless a comment says otherwise."""

    job: str
    live: bool
    ranks: int
    rank_s: float
    effective_s: float
    lost: Mapping[Key, float]
    cold_compile_s: Mapping[Phase, float]  # the part of pt2_compile without cached code
    starts: Mapping[Phase, int]
    steps: int  # of the rank with the most steps
    step_s: float | None  # median net time of a step, on one rank
    loop_wall_s: float  # from the first step to the last, on one rank, summed over attempts
    saves: SaveCosts
    failures: int
    preempted_unsaved_s: float
    known: Known

    @property
    def lost_s(self) -> float:
        return self.rank_s - self.effective_s

    @property
    def ett_percent(self) -> float:
        return 100 * self.effective_s / self.rank_s if self.rank_s else 0.0

    def of(self, *accounts: str, phases: tuple[Phase, ...] = (*STARTS, "job")) -> float:
        """Rank-seconds in these accounts."""
        return sum(self.lost.get((phase, name), 0.0) for phase in phases for name in accounts)

    def to_json(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "live": self.live,
            "ranks": self.ranks,
            "rank_s": self.rank_s,
            "effective_s": self.effective_s,
            "lost": {f"{phase}.{name}": s for (phase, name), s in sorted(self.lost.items())},
            "starts": dict(self.starts),
            "steps": self.steps,
            "step_s": self.step_s,
            "failures": self.failures,
            "saves": asdict(self.saves),
            "on": sorted(self.known.on),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSeconds:
    """One attempt: its rank-seconds by account, and the signs of how it was started."""

    number: int
    ranks: int
    seconds: Mapping[str, float]
    trained: bool  # it has a step
    allocated: bool = False  # it got a new allocation of hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseLosses:
    """Losses by phase and account, the number of starts by phase, and uncached compile time."""

    lost: Mapping[Key, float]
    starts: Mapping[Phase, int]
    cold_compile_s: Mapping[Phase, float]


def job_facts(ledger: Ledger, history: History, known: Known | None = None) -> JobFacts:
    """The facts of a settled job."""
    known = known or Known()
    found = by_phase([_seconds(attempt) for attempt in ledger.attempts], known)
    steps, step_s = _steps(history)
    return JobFacts(
        job=ledger.job,
        live=ledger.window.live,
        ranks=ledger.ranks,
        rank_s=ledger.rank_ns / 1e9,
        effective_s=ledger.accounts.get("effective", 0) / 1e9,
        lost=found.lost,
        cold_compile_s=found.cold_compile_s,
        starts=found.starts,
        steps=steps,
        step_s=step_s,
        loop_wall_s=_loop_wall_s(ledger),
        saves=measure_saves(history, ledger),
        failures=sum(tenure.failed for tenure in ledger.window.tenures),
        preempted_unsaved_s=_preempted_unsaved_s(ledger),
        known=known,
    )


def by_phase(attempts: Sequence[AttemptSeconds], known: Known) -> PhaseLosses:
    """The losses of a job's attempts, which are in order, by phase."""
    lost: dict[Key, float] = {}
    starts: dict[Phase, int] = {}
    cold: dict[Phase, float] = {}
    trained = [_compile_s(attempt) for attempt in attempts if attempt.trained]
    least_s = min(trained) if len(trained) > 1 else None
    for position, attempt in enumerate(attempts):
        phase = _phase(position, attempt, known.new_launchers.get(attempt.number))
        starts[phase] = starts.get(phase, 0) + 1
        for name, seconds in attempt.seconds.items():
            if name != "effective" and seconds:
                at: Key = (phase if _is_start(name) else "job", name)
                lost[at] = lost.get(at, 0.0) + seconds
        if _is_cold(attempt, least_s, known):
            compile_s = attempt.seconds.get("pt2_compile", 0.0)
            cold[phase] = cold.get(phase, 0.0) + compile_s
    return PhaseLosses(lost=lost, starts=starts, cold_compile_s=cold)


def _seconds(attempt: AttemptLedger) -> AttemptSeconds:
    seen = attempt.tenure.attempt
    return AttemptSeconds(
        number=seen.number,
        ranks=seen.ranks,
        seconds={name: ns / 1e9 for name, ns in attempt.accounts.items()},
        trained=attempt.first_step is not None,
        allocated=seen.allocated_ns is not None,
    )


def _is_start(name: str) -> bool:
    return name in _PER_START or (name in BY_NAME and BY_NAME[name].kind == "start")


def _phase(position: int, attempt: AttemptSeconds, new_launcher: bool | None) -> Phase:
    """Which start this is; where no launcher's log says so, a long launcher_init shows a new one.

    It is long as well where no standby was ready, so the log is preferred.
    """
    if position == 0:
        return "first"
    if new_launcher is None:
        launcher_s = attempt.seconds.get("launcher_init", 0.0)
        new_launcher = launcher_s >= _NO_LAUNCHER_S * attempt.ranks
    return "anew" if new_launcher or attempt.allocated else "again"


def _compile_s(attempt: AttemptSeconds) -> float:
    """Seconds of compiling on each rank."""
    return attempt.seconds.get("pt2_compile", 0.0) / max(attempt.ranks, 1)


def _is_cold(attempt: AttemptSeconds, least_s: float | None, known: Known) -> bool:
    """Whether an attempt compiled without a cache: from its notes, else from its compile time.

    `least_s` is the shortest compile of the starts that trained; None if there is one start only.
    """
    each_s = _compile_s(attempt)
    noted = known.cold.get(attempt.number)
    if noted is not None or not each_s:
        return bool(noted)
    return least_s is None or each_s > _COLD * least_s


def _steps(history: History) -> tuple[int, float | None]:
    """The number of steps of one rank, and the median time of a step."""
    steps = net_steps(history.rows)
    if not len(steps):
        return 0, None
    counts = np.bincount(steps.rank, weights=steps.count)
    order = np.argsort(steps.median, kind="stable")
    upto = np.cumsum(steps.count[order])
    middle = order[np.searchsorted(upto, (upto[-1] + 1) // 2)]
    return int(counts.max()), float(steps.median[middle])


def _loop_wall_s(ledger: Ledger) -> float:
    found = (
        attempt.last_end_ns - attempt.progress_ns
        for attempt in ledger.attempts
        if attempt.last_end_ns is not None and attempt.progress_ns is not None
    )
    return sum(found) / 1e9


def _preempted_unsaved_s(ledger: Ledger) -> float:
    """Rank-seconds of steps lost by preemptions, which come with notice."""
    costs = failure_costs(ledger)
    return sum(cost.unsaved_ns for cost in costs if cost.state == "preempted") / 1e9
