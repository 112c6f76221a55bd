"""Advice on one job: what each lever would win, the best set, and what is still unknown."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchett.advise.job_facts import JobFacts
from torchett.advise.levers.table import BY_NAME, LEVERS
from torchett.advise.prediction import (
    Draws,
    Found,
    Losses,
    NotEnough,
    Nothing,
    Prediction,
    Samples,
    points,
    quantiles,
)
from torchett.advise.priors import prior

_LEAST_POINTS = 0.1  # of ETT%: a smaller gain is not advised
_YOUNG_S = 20 * 60.0
_SHORT_S, _LONG_S = 0.5, 15.0  # of training: shorter runs vary more, by the root of their length


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsure:
    """A lever that the run has too little data for."""

    lever: str
    reason: str
    more_s: float | None

    @property
    def sentence(self) -> str:
        if self.more_s is None:
            return f"not enough data: {self.reason}"
        minutes = max(1, round(self.more_s / 60))
        return f"not enough data: {self.reason}: run {minutes} minute{'s'[: minutes > 1]} more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """All advice on one job: the most valuable lever first."""

    job: str
    ett_percent: float
    lost_s: float
    predictions: Sequence[Prediction]
    best: Prediction | None
    gains: Sequence[tuple[str, float]]  # of the best set: what each lever adds, in rank-seconds
    unsure: Sequence[Unsure]
    nothing: Mapping[str, str]  # lever → why it would win nothing
    not_yet: str | None = None  # why there is no advice at all

    def of(self, lever: str) -> Prediction | None:
        return next((one for one in self.predictions if one.levers == (lever,)), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "ett_percent": self.ett_percent,
            "lost_s": self.lost_s,
            "not_yet": self.not_yet,
            "predictions": [one.to_json() for one in self.predictions],
            "best": None if self.best is None else self.best.to_json(),
            "gains": [{"lever": name, "adds_s": seconds} for name, seconds in self.gains],
            "not_enough_data": {one.lever: one.sentence for one in self.unsure},
            "nothing_to_win": dict(self.nothing),
        }


class Adviser:
    """One job's facts, with the result of each lever."""

    def __init__(self, facts: JobFacts, *, seed: int = 0) -> None:
        self.facts = facts
        self._draws = Draws(seed)
        self.results = {lever.name: lever.look(facts) for lever in LEVERS}
        self.found = {name: one for name, one in self.results.items() if isinstance(one, Found)}

    def losses(self, levers: Collection[str]) -> Samples:
        """Rank-seconds that a run with these levers would lose, with the noise of a second run."""
        return self._noisy(self._after(levers))

    def won(self, levers: Collection[str]) -> Samples:
        """Rank-seconds that these levers would win, without the noise of a second run."""
        return np.asarray(self.facts.lost_s - self._after(levers).total, dtype=np.float64)

    def left(self, levers: Collection[str]) -> dict[str, float]:
        """Rank-seconds that each account is expected to lose with these levers."""
        found: dict[str, float] = {}
        after = self._after(levers)
        for phase, name in after:
            found[name] = found.get(name, 0.0) + float(np.mean(after[phase, name]))
        return found

    def predict(self, levers: Sequence[str]) -> Prediction:
        """What these levers would win together."""
        after = self.losses(levers)
        chosen = [self.found[name] for name in levers if name in self.found]
        return Prediction(
            levers=tuple(levers),
            title=" + ".join(BY_NAME[name].title for name in levers),
            seconds=quantiles(self.facts.lost_s - after),
            points=quantiles(points(self.facts, after, self._trained_s())),
            reason=" ".join(one.reason for one in chosen),
            change="\n".join(one.change for one in chosen),
            numbers={key: value for one in chosen for key, value in one.numbers.items()},
            priors=tuple(dict.fromkeys(name for one in chosen for name in one.priors)),
            note=" ".join(dict.fromkeys(one.note for one in chosen if one.note)),
        )

    def best(self) -> list[tuple[str, float]]:
        """The levers to switch on together, each with what it adds to those before it."""
        chosen: list[tuple[str, float]] = []
        left = set(self.found)
        before = self._mean(())
        while left:
            names = [name for name, _ in chosen]
            gains = {
                name: before - self._mean((*names, *sorted(self._needed(name)), name))
                for name in sorted(left)
            }
            name = max(gains, key=lambda one: gains[one])
            least_s = _LEAST_POINTS / 100 * self.facts.rank_s
            if gains[name] < least_s:
                break
            for one in (*sorted(self._needed(name) & left), name):
                now = self._mean((*(n for n, _ in chosen), one))
                chosen.append((one, before - now))
                before = now
                left.discard(one)
        return chosen

    def _needed(self, name: str) -> frozenset[str]:
        return BY_NAME[name].needs & self.found.keys()

    def _mean(self, levers: Collection[str]) -> float:
        return float(np.mean(self._after(levers).total))

    def _after(self, levers: Collection[str]) -> Losses:
        """The losses with these levers, one after the other in the table's order."""
        losses = Losses(self.facts.lost, self._draws.samples)
        for lever in LEVERS:
            if lever.name in levers and lever.name in self.found:
                self.found[lever.name].effect(losses, self._draws)
        return losses

    def _trained_s(self) -> Samples:
        """Rank-seconds of the same steps in another run: ETT% depends on them, too."""
        again = self._draws.of("rerun.effective", prior("rerun.effective"))
        each_s = self.facts.effective_s / max(self.facts.ranks, 1)
        wider = max(1.0, (_LONG_S / max(each_s, _SHORT_S)) ** 0.5)
        return np.asarray(self.facts.effective_s * np.exp(wider * np.log(again)), dtype=np.float64)

    def _noisy(self, losses: Losses) -> Samples:
        """The total of the losses in another run: no two runs of one job lose the same."""
        again = prior("rerun")
        total = sum(
            losses[key] * self._draws.of(f"rerun.{key[0]}.{key[1]}", again) for key in losses
        )
        shared = self._draws.of("rerun", prior("rerun.machine"))
        return np.asarray(total * shared, dtype=np.float64)


def advise(facts: JobFacts, *, seed: int = 0) -> Advice:
    """What each lever would win on this job, and what they would win together."""
    if not facts.effective_s or facts.steps < 2:
        return _not_yet(facts)
    adviser = Adviser(facts, seed=seed)
    alone = {name: adviser.predict([name]) for name in adviser.found}
    least_s = _LEAST_POINTS / 100 * facts.rank_s
    predictions = [
        one for name, one in alone.items() if float(np.median(adviser.won([name]))) >= least_s
    ]
    small = {
        name: f"about {np.median(adviser.won([name])):+.1f} of {facts.lost_s:.1f} rank-s: less than"
        " runs vary"
        for name, one in alone.items()
        if one not in predictions
    }
    gains = adviser.best()
    return Advice(
        job=facts.job,
        ett_percent=facts.ett_percent,
        lost_s=facts.lost_s,
        predictions=sorted(predictions, key=lambda one: -one.seconds.mid),
        best=adviser.predict([name for name, _ in gains]) if gains else None,
        gains=gains,
        unsure=[
            Unsure(lever=name, reason=one.reason, more_s=one.more_s)
            for name, one in adviser.results.items()
            if isinstance(one, NotEnough)
        ],
        nothing={
            name: one.reason for name, one in adviser.results.items() if isinstance(one, Nothing)
        }
        | small,
    )


def _not_yet(facts: JobFacts) -> Advice:
    """The answer for a job that has not trained yet."""
    what = "no step was recorded" if facts.steps < 2 else "no step has survived"
    return Advice(
        job=facts.job,
        ett_percent=facts.ett_percent,
        lost_s=facts.lost_s,
        predictions=(),
        best=None,
        gains=(),
        unsure=(),
        nothing={},
        not_yet=f"not enough data: {what}: run {_YOUNG_S / 60:.0f} minutes more",
    )
