"""Whether predictions came true: one against its outcome, and all stored ones together."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from torchett.advise.job_facts import JobFacts
from torchett.advise.kept import CheckedPrediction, KeptPrediction

_OTHER_LENGTH = 0.15  # of training: a longer run changes the weight of a start in ETT%


def outcome(
    predicted: KeptPrediction, before: JobFacts, after: JobFacts, with_run: str
) -> CheckedPrediction:
    """What the levers won in the second run, from the losses of both runs."""
    longer = after.effective_s / before.effective_s if before.effective_s else 0.0
    notes = []
    if abs(longer - 1) > _OTHER_LENGTH:
        notes.append(f"the second run trained {longer:.2f} times as long")
    if before.failures != after.failures:
        notes.append(f"{before.failures} and {after.failures} failures")
    if before.ranks != after.ranks:
        notes.append(f"{before.ranks} and {after.ranks} ranks")
    return CheckedPrediction(
        prediction=predicted,
        with_run=with_run,
        seconds=before.lost_s - after.lost_s,
        points=after.ett_percent - before.ett_percent,
        note="; ".join(notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well predictions came true. Shares are of outcomes, in percent."""

    what: str
    outcomes: int
    inside_percent: float  # inside the 80% interval
    near_percent: float  # within a fifth of the expected gain, or within one point
    below_percent: float  # of the outcomes outside: the gain is below the interval
    bias_points: float  # measured − expected, on average

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def scores(outcomes: Sequence[CheckedPrediction]) -> list[Score]:
    """The score of all outcomes, then of each lever or set of levers."""
    if not outcomes:
        return []
    by_levers = defaultdict[str, list[CheckedPrediction]](list)
    for one in outcomes:
        by_levers[" + ".join(one.prediction.levers)].append(one)
    parts = [_score(what, its) for what, its in sorted(by_levers.items())]
    return [_score("all", outcomes), *parts]


def _score(what: str, outcomes: Iterable[CheckedPrediction]) -> Score:
    its = list(outcomes)
    outside = [one for one in its if not one.inside]
    below = [one for one in outside if one.points < one.prediction.points.low]
    return Score(
        what=what,
        outcomes=len(its),
        inside_percent=100 * fmean(one.inside for one in its),
        near_percent=100 * fmean(one.near for one in its),
        below_percent=100 * len(below) / len(outside) if outside else 0.0,
        bias_points=fmean(one.points - one.prediction.points.mid for one in its),
    )
