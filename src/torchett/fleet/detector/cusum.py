"""Changes in many series at once: cumulative sums of clipped deviations.

    share      ▁▂▁▂▁▁▂▁▂▁▂▁▁▂▁▆▇▆▇▆▇     one account of one class of jobs, hour by hour
    deviation  … −1 0 1       | 5 6 5     in standard deviations of the baseline, clipped
    sum        … 0  0 0       | 2 5 7     grows while the share stays high; an alarm above the limit
               baseline         ^ since when: after the last hour at which the sum was zero

A single spike cannot alarm: an hour adds at most `clip − slack`, and no limit is below
`least` such hours. The same runs over hours, for large changes, and over days, for small ones.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

DAY: Final = 24
FLOOR: Final = 0.0005  # of all time: less noise than this is taken for this much
LEAST_KNOWN: Final = 5  # days with data, without which a series is not watched
_SPARSE = 0.1  # of the usual hardware: an hour with less says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How one pass looks: `slack` deviations are never counted, `clip` at most."""

    name: str
    hours: int  # in one value
    slack: float
    clip: float
    least: int  # values that a change must last for

    @property
    def least_limit(self) -> float:
        return (self.least - 0.5) * (self.clip - self.slack)


HOURLY: Final = Speed(name="hours", hours=1, slack=3.0, clip=8.0, least=4)
DAILY: Final = Speed(name="days", hours=DAY, slack=1.5, clip=5.0, least=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What is usual, by series."""

    mean: Floats
    deviation: Floats  # of a value with the usual hardware
    weight: Floats  # the usual hardware
    watched: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarms:
    """Series that alarmed: which, at which value, and since which; the first of each."""

    series: Ints
    at: Ints
    since: Ints
    sums: Floats


def pooled(shares: Floats, weights: Floats, hours: int) -> tuple[Floats, Floats]:
    """Shares and weights of so many hours each; the last hours are whole, the first may be cut."""
    if hours == 1:
        return shares, weights
    count = shares.shape[1] // hours
    cut = slice(shares.shape[1] - count * hours, None)
    w = weights[:, cut].reshape(len(weights), count, hours)
    x = shares[:, cut].reshape(len(shares), count, hours)
    total = w.sum(axis=2)
    return (x * w).sum(axis=2) / np.maximum(total, 1e-12), total


def baseline(shares: Floats, weights: Floats, least_known: int = LEAST_KNOWN * DAY) -> Baseline:
    """What these values (series × time) say is usual; those of weight 0 do not count."""
    known = weights > 0
    filled = np.where(known, weights, np.nan)
    filled[~known.any(axis=1)] = 1.0
    usual = np.asarray(np.nanmedian(filled, axis=1), dtype=np.float64)
    factor = np.minimum(weights / np.maximum(usual, 1e-12)[:, None], 1.0)
    total = np.maximum(factor.sum(axis=1), 1e-12)
    mean = (shares * factor).sum(axis=1) / total
    spread = np.sqrt((np.where(known, shares - mean[:, None], 0) ** 2 * factor).sum(axis=1) / total)
    return Baseline(
        mean=mean,
        deviation=np.maximum(spread, FLOOR),
        weight=usual,
        watched=known.sum(axis=1) >= least_known,
    )


def quietness(weights: Floats, base: Baseline) -> Floats:
    """How a value's noise compares with usual: √ of its hardware's share of the usual, 0…1.

    Fewer jobs make a noisier share; a value with hardly any hardware says nothing.
    """
    factor = np.minimum(weights / np.maximum(base.weight, 1e-12)[:, None], 1.0)
    return np.asarray(np.where(factor >= _SPARSE, np.sqrt(factor), 0.0))


def deviations(shares: Floats, weights: Floats, base: Baseline, clip: float) -> Floats:
    """How far each value is from usual, in deviations: at most `clip`."""
    z = (shares - base.mean[:, None]) / base.deviation[:, None]
    return np.asarray(np.clip(z, -clip, clip) * quietness(weights, base))


def highest(z: Floats, slack: float) -> Floats:
    """The largest sum that each series reaches."""
    total = np.zeros(len(z))
    most = total.copy()
    for at in range(z.shape[1]):
        total = np.maximum(total + z[:, at] - slack, 0.0)
        most = np.maximum(most, total)
    return most


def alarms(z: Floats, limit: Floats | float, slack: float) -> Alarms:
    """The first alarm of each series."""
    count, length = z.shape
    total = np.zeros(count)
    since = np.zeros(count, dtype=np.int64)
    at = np.full(count, -1, dtype=np.int64)
    begun, reached = since.copy(), total.copy()
    for here in range(length):
        total = np.maximum(total + z[:, here] - slack, 0.0)
        since[total == 0.0] = here + 1
        fresh = (total > limit) & (at < 0)
        at[fresh], begun[fresh], reached[fresh] = here, since[fresh], total[fresh]
    found = np.flatnonzero(at >= 0)
    return Alarms(series=found, at=at[found], since=begun[found], sums=reached[found])
