"""Predictions and their outcomes, stored in the folder of the runs.

    RUNS/advice.jsonl   {"event":"prediction","run":"gpt","levers":["standby"],"seconds":[…],…}
                        {"event":"outcome","run":"gpt","with":"gpt-2","levers":["standby"],…}

The newest prediction for a run and a set of levers counts, and the newest outcome for two runs.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchett.advise.priors import Range
from torchett.model.errors import RunError

FILE: Final = "advice.jsonl"
_NOT_A_FACT = (ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPrediction:
    """The gain predicted for a run with these levers, in rank-seconds and points of ETT%."""

    run: str
    levers: tuple[str, ...]
    seconds: Range
    points: Range
    made_s: float  # since the epoch

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        return self.run, tuple(sorted(self.levers))

    def to_json(self) -> dict[str, Any]:
        return {
            "event": "prediction",
            "run": self.run,
            "levers": list(self.levers),
            "seconds": _row(self.seconds),
            "points": _row(self.points),
            "made_s": self.made_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPrediction:
    """A prediction, and what was measured with its levers on."""

    prediction: KeptPrediction
    with_run: str
    seconds: float
    points: float
    note: str = ""

    @property
    def inside(self) -> bool:
        """Whether the measured points lie in the interval."""
        return self.prediction.points.low <= self.points <= self.prediction.points.high

    @property
    def near(self) -> bool:
        """Whether it is within a fifth of the expected gain, or within one point of ETT%."""
        expected = self.prediction.seconds.mid
        by_seconds = abs(self.seconds - expected) <= 0.2 * abs(expected)
        return by_seconds or abs(self.points - self.prediction.points.mid) <= 1.0

    def to_json(self) -> dict[str, Any]:
        return {
            "event": "outcome",
            "run": self.prediction.run,
            "with": self.with_run,
            "levers": list(self.prediction.levers),
            "predicted": self.prediction.to_json(),
            "seconds": self.seconds,
            "points": self.points,
            "inside": self.inside,
            "near": self.near,
            "note": self.note,
        }


class Kept:
    """The predictions and outcomes of one folder of runs."""

    def __init__(self, runs: Path) -> None:
        self.path = runs / FILE
        self._predictions: dict[tuple[str, tuple[str, ...]], KeptPrediction] = {}
        self._outcomes: dict[tuple[str, tuple[str, ...], str], CheckedPrediction] = {}
        for fact in _facts(self.path):
            self._take(fact)

    @property
    def outcomes(self) -> list[CheckedPrediction]:
        return list(self._outcomes.values())

    def prediction(self, run: str, levers: Iterable[str]) -> KeptPrediction | None:
        return self._predictions.get((run, tuple(sorted(levers))))

    def add(self, new: Iterable[KeptPrediction | CheckedPrediction]) -> None:
        """Append new entries; RunError if the folder cannot be written to."""
        lines = []
        for one in new:
            fact = one.to_json()
            if isinstance(one, KeptPrediction) and _same(self._predictions.get(one.key), one):
                continue
            lines.append(json.dumps(fact, ensure_ascii=False) + "\n")
            self._take(fact)
        if not lines:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(lines))
        except OSError as error:
            raise RunError(f"{self.path}: predictions are not kept: {error.strerror}") from None

    def _take(self, fact: Mapping[str, Any]) -> None:
        try:
            if fact["event"] == "prediction":
                made = _prediction(fact)
                self._predictions[made.key] = made
            elif fact["event"] == "outcome":
                outcome = CheckedPrediction(
                    prediction=_prediction(fact["predicted"]),
                    with_run=str(fact["with"]),
                    seconds=float(fact["seconds"]),
                    points=float(fact["points"]),
                    note=str(fact.get("note", "")),
                )
                self._outcomes[(*outcome.prediction.key, outcome.with_run)] = outcome
        except _NOT_A_FACT:
            pass  # a line that was cut off, or of another version


def _same(known: KeptPrediction | None, new: KeptPrediction) -> bool:
    return known is not None and (known.seconds, known.points) == (new.seconds, new.points)


def _facts(path: Path) -> Iterable[Mapping[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            fact = json.loads(line)
        except ValueError:
            continue
        if isinstance(fact, dict):
            yield fact


def _prediction(fact: Mapping[str, Any]) -> KeptPrediction:
    return KeptPrediction(
        run=str(fact["run"]),
        levers=tuple(str(name) for name in fact["levers"]),
        seconds=_range(fact["seconds"]),
        points=_range(fact["points"]),
        made_s=float(fact["made_s"]),
    )


def _row(given: Range) -> list[float]:
    return [given.low, given.mid, given.high]


def _range(row: Any) -> Range:
    low, mid, high = (float(value) for value in row)
    return Range(low=low, mid=mid, high=high)
