"""What levers would win over a fleet: GPU-hours a week, by lever and by team.

The gains of each job come from its rows in `jobs` and `attempts` (docs/fleet.md) alone. Facts that
rows do not hold are unknown (which levers were on) or averages (how long a save blocks).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np

from torchett.advise.advice import Adviser
from torchett.advise.job_facts import AttemptSeconds, JobFacts, Known, by_phase
from torchett.advise.prediction import Samples, quantiles
from torchett.advise.priors import Range
from torchett.ledger.metrics.saves import SaveCosts
from torchett.model.accounts import NAMES

# A job that ended in the last N days counts with all its time. Rows of sacct have no accounts.
_RECENT: Final = """
    SELECT * FROM jobs WHERE source <> 'sacct' AND rank_ns > 0
    AND ended > (SELECT max(ended) FROM jobs) - to_days(?::INTEGER)
"""
JOBS_SQL: Final = _RECENT + " ORDER BY project, job"
ATTEMPTS_SQL: Final = f"""
    SELECT a.* FROM attempts a JOIN ({_RECENT}) j USING (project, job)
    ORDER BY a.project, a.job, a.attempt
"""
WEEK: Final = timedelta(days=7)
_UNKNOWN = "unknown"
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetGain:
    """One lever over many jobs, in GPU-hours a week."""

    lever: str
    hours: Range
    jobs: int  # jobs in which the lever would win something
    by_team: Mapping[str, float]  # expected hours a week, largest first

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAdvice:
    """All levers over all jobs that ended in the last days."""

    jobs: int
    days: int
    hours: float  # GPU-hours a week
    lost_hours: float
    gains: Sequence[FleetGain]  # each lever alone: gains do not add up
    together: Range | None  # every job with its best set
    by_team: Mapping[str, float]  # expected hours of `together`

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def fleet_advice(
    jobs: Sequence[Row], attempts: Sequence[Row], *, days: int, by: str = "team"
) -> FleetAdvice:
    """The gains over these rows; `by` is the label that names a team."""
    of_job = defaultdict[tuple[str, str], list[Row]](list)
    for row in attempts:
        of_job[row["project"], row["job"]].append(row)
    a_week = WEEK / timedelta(days=days) / 3600
    won: dict[str, list[Samples]] = defaultdict(list)
    teams: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for job in jobs:
        facts = facts_of_rows(job, of_job[job["project"], job["job"]])
        adviser = Adviser(facts)
        team = str(job.get(by) or _UNKNOWN)
        sets: dict[str, tuple[str, ...]] = {name: (name,) for name in adviser.found}
        sets[""] = tuple(name for name, _ in adviser.best())
        for name, levers in sets.items():
            hours = a_week * adviser.won(levers)
            won[name].append(hours)
            teams[name][team] += float(np.mean(hours))
    together = won.pop("", [])
    gains = [
        FleetGain(
            lever=name,
            hours=quantiles(np.sum(samples, axis=0)),
            jobs=len(samples),
            by_team=_ordered(teams[name]),
        )
        for name, samples in won.items()
    ]
    whole_s = sum(job["rank_ns"] for job in jobs) / 1e9
    lost_s = whole_s - sum(job["effective_ns"] for job in jobs) / 1e9
    return FleetAdvice(
        jobs=len(jobs),
        days=days,
        hours=a_week * whole_s,
        lost_hours=a_week * lost_s,
        gains=sorted(gains, key=lambda gain: -gain.hours.mid),
        together=quantiles(np.sum(together, axis=0)) if together else None,
        by_team=_ordered(teams[""]),
    )


def _ordered(by_team: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(by_team.items(), key=lambda item: -item[1]))


def facts_of_rows(job: Row, attempts: Sequence[Row]) -> JobFacts:
    """The facts of one job, from its row and the rows of its attempts."""
    known = Known()
    found = by_phase([_attempt(row) for row in attempts], known)
    ranks = max(job["ranks"], 1)
    steps = 0 if job["last_step"] is None else job["last_step"] + 1
    effective_s = job["effective_ns"] / 1e9
    failed = [row for row in attempts if row["state"] not in ("success", "live")]
    sudden = [row for row in failed if row["state"] != "preempted"]
    noticed = [row for row in failed if row["state"] == "preempted"]
    return JobFacts(
        job=job["job"],
        live=job["state"] == "live",
        ranks=ranks,
        rank_s=job["rank_ns"] / 1e9,
        effective_s=effective_s,
        lost=found.lost,
        cold_compile_s=found.cold_compile_s,
        starts=found.starts,
        steps=steps,
        step_s=effective_s / ranks / steps if steps else None,
        loop_wall_s=(job["effective_ns"] + job["in_loop_ns"]) / 1e9 / ranks,
        saves=_saves(job, attempts, len(sudden)),
        failures=len(failed),
        preempted_unsaved_s=sum(row["failure_unsaved_ns"] or 0 for row in noticed) / 1e9,
        known=known,
    )


def _attempt(row: Row) -> AttemptSeconds:
    own_s = (row["own_ns"] or 0) / 1e9
    seconds = {name: (row[f"{name}_ns"] or 0) / 1e9 for name in NAMES}
    return AttemptSeconds(
        number=row["attempt"],
        ranks=row["ranks"],
        seconds=seconds | ({"x-own": own_s} if own_s else {}),
        trained=row["first_step"] is not None,
    )


def _saves(job: Row, attempts: Sequence[Row], failures: int) -> SaveCosts:
    """The average cost of a save, from the number of durable saves."""
    ranks, saves = max(job["ranks"], 1), job["saves"] or 0
    blocked_s = sum(row["checkpoint_blocked_ns"] or 0 for row in attempts) / 1e9
    exposure_s = job["window_ns"] / 1e9
    loop_s = (job["effective_ns"] + job["unsaved_ns"]) / 1e9 / ranks
    whole = job["rank_ns"]
    return SaveCosts(
        saves=saves,
        blocking_saves=saves if blocked_s else 0,
        blocking_s=blocked_s / ranks / saves if saves and blocked_s else None,
        upload_s=None,
        interval_s=loop_s / saves if saves else None,
        recover_s=None,
        failures=failures,
        exposure_s=exposure_s,
        blocked_share=1e9 * blocked_s / whole,
        unsaved_share=job["unsaved_ns"] / whole,
    )
