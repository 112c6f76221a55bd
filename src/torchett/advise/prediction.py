"""What a lever would win, as samples: the losses with the lever on, drawn many times.

    losses of the run          ▒▒▒▒▒▒▒▒▒▒▒▒      one number for each (phase, account)
    a lever is a function      ▒▒▒▒▒▒ ┄ ▒▒▒▒     from samples of losses to the losses that remain
    two levers                 one after the other: no second is won twice

A draw is seeded by its name, so that a lever has the same samples alone and with other levers.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from torchett.advise.job_facts import JobFacts, Key
from torchett.advise.priors import Range

Samples = npt.NDArray[np.float64]
SAMPLES: Final = 2000
LEVELS: Final = (0.1, 0.5, 0.9)  # of the interval that holds 80%
_SHOWN = (0.0, 0.1, 0.5, 0.9, 1.0)


class Draws:
    """Random samples by name."""

    def __init__(self, seed: int = 0, samples: int = SAMPLES) -> None:
        self._seed, self.samples = seed, samples

    def of(self, name: str, given: Range) -> Samples:
        """Samples with these 10th, 50th and 90th percentiles; evenly spread between them."""
        rng = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        low, mid, high = given.low, given.mid, given.high
        least, most = low - (mid - low) / 2, high + (high - mid) / 2
        least = max(least, 0.0) if low >= 0 else least
        spread = np.interp(rng.random(self.samples), _SHOWN, (least, low, mid, high, most))
        return np.asarray(spread, dtype=np.float64)

    def uniform(self, name: str, rows: int) -> Samples:
        """Rows of samples from 0 to 1."""
        rng = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        return rng.random((rows, self.samples))


class Losses:
    """Samples of the rank-seconds in each (phase, account)."""

    def __init__(self, lost: Mapping[Key, float], samples: int = SAMPLES) -> None:
        self._none = np.zeros(samples)
        self._seconds = {key: np.full(samples, seconds) for key, seconds in lost.items()}

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._seconds))

    def __getitem__(self, key: Key) -> Samples:
        return self._seconds.get(key, self._none)

    def __setitem__(self, key: Key, seconds: Samples) -> None:
        self._seconds[key] = seconds

    def scale(self, key: Key, kept: Samples | float) -> None:
        """Multiply this loss by `kept`, if there is one."""
        if key in self._seconds:
            self._seconds[key] = self._seconds[key] * kept

    def lower(self, key: Key, to: Samples) -> None:
        """Reduce this loss to at most `to`, if there is one."""
        if key in self._seconds:
            self._seconds[key] = np.minimum(self._seconds[key], to)

    @property
    def total(self) -> Samples:
        return self._none + sum(self._seconds.values())


Effect = Callable[[Losses, Draws], None]  # changes the losses in place


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A lever would win something here: how, why, and what to type."""

    effect: Effect
    reason: str
    change: str
    numbers: Mapping[str, float | str]  # from the ledger, for --why
    priors: tuple[str, ...] = ()  # names in priors.toml
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotEnough:
    """The run has too little data for this lever."""

    reason: str
    more_s: float | None = None  # run for this much longer; None: a longer run does not help


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """The lever would win nothing here, or is on already."""

    reason: str


Look = Callable[[JobFacts], Found | NotEnough | Nothing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """A row of the table of levers."""

    name: str
    title: str
    look: Look
    needs: frozenset[str] = field(default=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a lever (or a set of them) would win, with the interval that should hold 80%."""

    levers: tuple[str, ...]
    title: str
    seconds: Range  # rank-seconds
    points: Range  # of ETT%
    reason: str
    change: str
    numbers: Mapping[str, float | str] = field(default_factory=dict)
    priors: tuple[str, ...] = ()
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def quantiles(samples: Samples) -> Range:
    low, mid, high = np.quantile(samples, LEVELS)
    return Range(low=float(low), mid=float(mid), high=float(high))


def points(facts: JobFacts, after_s: Samples, trained_s: Samples) -> Samples:
    """By how much ETT% rises in a run that trains for `trained_s` and loses `after_s`."""
    percent = 100 * trained_s / np.maximum(trained_s + after_s, 1e-9)
    return np.asarray(percent - facts.ett_percent, dtype=np.float64)
