"""Limits that keep a fleet's false alarms within a budget, found by replaying its own noise.

The past weeks of all series are cut into blocks of whole days and laid out anew many times: four
weeks to learn from, one week to watch. Nothing changed in those weeks but what always changes, so
every alarm in them is a false one. The limit is the sum that is exceeded as often as the budget
allows, by all series together; the series of one class that change in one week are one alarm.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from torchett.fleet.detector.cusum import (
    DAILY,
    DAY,
    HOURLY,
    Alarms,
    Floats,
    Ints,
    Speed,
    alarms,
    baseline,
    deviations,
    highest,
    pooled,
)

LEARNT_DAYS: Final = 28
WATCHED_DAYS: Final = 7
_REPLAYS = 100
_BLOCK_DAYS = 2.0  # that a block has on average
_SHARE = {"hours": 0.5, "days": 0.5}  # of the budget
_MARGIN = 0.7  # limits are set for this part of the budget: they are estimates


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The sum above which each speed alarms."""

    hours: float
    days: float

    def of(self, speed: Speed) -> float:
        return self.hours if speed.name == "hours" else self.days


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One series that changed: when that was noticed and since when, as hours."""

    series: int
    at: int
    since: int
    deviations: float  # mean since then
    speed: str


def drawn_days(days: int, wanted: int, rng: np.random.Generator) -> Ints:
    """The hours of `wanted` days: blocks of whole days, begun anywhere, of random length."""
    picked: list[int] = []
    while len(picked) < wanted:
        first, length = int(rng.integers(days)), int(rng.geometric(1 / _BLOCK_DAYS))
        picked += [(first + i) % days for i in range(length)]
    hours = np.array(picked[:wanted])[:, None] * DAY + np.arange(DAY)
    return np.asarray(hours.ravel(), dtype=np.int64)


def limits(
    shares: Floats,
    weights: Floats,
    classes: Ints,
    *,
    budget: float = 1.0,
    replays: int = _REPLAYS,
    seed: int = 0,
) -> Limits:
    """The limits for these series (series × hours), for `budget` false alarms a week in all.

    `classes` says which class each series belongs to.
    """
    rng = np.random.default_rng(seed)
    days = shares.shape[1] // DAY
    peaks: dict[str, list[Floats]] = {"hours": [], "days": []}
    for _ in range(replays):
        hours = drawn_days(days, LEARNT_DAYS + WATCHED_DAYS, rng)
        x, w = shares[:, hours], weights[:, hours]
        for speed in (HOURLY, DAILY):
            sums = highest(watched_deviations(x, w, speed), speed.slack)
            peak = np.zeros(int(classes.max()) + 1)
            np.maximum.at(peak, classes, sums)
            peaks[speed.name].append(peak)
    found = {}
    for speed in (HOURLY, DAILY):
        every = np.sort(np.concatenate(peaks[speed.name]))[::-1]
        allowed = max(int(budget * _SHARE[speed.name] * _MARGIN * replays), 1)
        limit = float(every[min(allowed, len(every) - 1)])
        found[speed.name] = max(limit, speed.least_limit)
    return Limits(**found)


def watched_deviations(shares: Floats, weights: Floats, speed: Speed) -> Floats:
    """Deviations in the last week from what the weeks before it say; 0 for unwatched series."""
    x, w = pooled(shares, weights, speed.hours)
    watched = WATCHED_DAYS * DAY // speed.hours
    base = baseline(x[:, :-watched], w[:, :-watched], 5 * DAY // speed.hours)
    z = deviations(x[:, -watched:], w[:, -watched:], base, speed.clip)
    return np.asarray(z * base.watched[:, None])


def changes(shares: Floats, weights: Floats, limit: Limits) -> list[Found]:
    """What changed upwards in the last week of these hours, the earliest noticed first."""
    found: dict[int, Found] = {}
    first = shares.shape[1] - WATCHED_DAYS * DAY
    for speed in (HOURLY, DAILY):
        z = watched_deviations(shares, weights, speed)
        for one in _found(alarms(z, limit.of(speed), speed.slack), z, speed, first):
            known = found.get(one.series)
            if known is None or one.at < known.at:
                found[one.series] = one
    return sorted(found.values(), key=lambda one: one.at)


def _found(alarmed: Alarms, z: Floats, speed: Speed, first: int) -> list[Found]:
    rows = zip(alarmed.series.tolist(), alarmed.at.tolist(), alarmed.since.tolist(), strict=True)
    return [
        Found(
            series=series,
            at=first + (at + 1) * speed.hours - 1,
            since=first + since * speed.hours,
            deviations=float(z[series, since : at + 1].mean()),
            speed=speed.name,
        )
        for series, at, since in rows
    ]
