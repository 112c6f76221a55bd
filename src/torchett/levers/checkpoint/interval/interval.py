"""How long to train between two checkpoints, and what that wastes.

    ├────── T ──────┤─ B ─┤────── T ──────┤─ B ─┤─── ✗ ├─ R ─┤ …      T  training
                          ├── L ──┤ durable                           B  blocked by the save
                                                                      L  blocked → durable
    failures come at random, every M seconds on average               R  recovery

Of the time, training that survives is η(T) = T·e^(−L/M) / [M·e^(R/M)·(e^((T+B)/M) − 1)]. It is
largest at T* = M·[1 + W₀(−e^(−1−B/M))] ≈ √(2BM) − 2B/3, wherever L and R are.
"""

import logging
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev
from typing import Any

from torchett.levers.checkpoint.interval.failure_rate import FailureRate

log = logging.getLogger("torchett")

DAY_S = 86400.0
DEFAULT_MTBF_S = 8 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a checkpoint and a failure cost, in seconds: B, M, L and R of the picture above."""

    blocking_s: float
    mtbf_s: float
    upload_s: float = 0.0
    recover_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """Shares of all time that are not training which survives."""

    checkpointing: float  # blocked by saves that count
    lost: float  # trained or saved in vain: since the last durable checkpoint
    recovering: float

    @property
    def of_interval(self) -> float:
        """What another interval would change; recovery is the same for all."""
        return self.checkpointing + self.lost

    @property
    def total(self) -> float:
        return self.checkpointing + self.lost + self.recovering


def optimum_s(blocking_s: float, mtbf_s: float) -> float:
    """T*, the training time between two saves that wastes least."""
    return mtbf_s * lambert_gap(blocking_s / mtbf_s)


def simple_s(blocking_s: float, mtbf_s: float) -> float:
    """√(2BM), where failures × T/2 + B/T is least: the well-known formula."""
    return math.sqrt(2 * blocking_s * mtbf_s)


def efficiency(interval_s: float, costs: Costs) -> float:
    """η, the share of all time that is training which survives."""
    cycle_s = interval_s + costs.blocking_s
    if not cycle_s:
        return 0.0
    kept = math.exp(-(costs.upload_s + costs.recover_s) / costs.mtbf_s)
    return kept * _timely(cycle_s / costs.mtbf_s) * interval_s / cycle_s


def waste(interval_s: float, costs: Costs) -> Waste:
    """1 − η in its parts, each computed without cancellation."""
    cycle_s = interval_s + costs.blocking_s
    timely, late = _timely(cycle_s / costs.mtbf_s), _late(cycle_s / costs.mtbf_s)
    durable = math.exp(-costs.upload_s / costs.mtbf_s)
    up = math.exp(-costs.recover_s / costs.mtbf_s)
    return Waste(
        checkpointing=up * durable * timely * (costs.blocking_s / cycle_s if cycle_s else 1),
        lost=up * (-math.expm1(-costs.upload_s / costs.mtbf_s) + durable * late),
        recovering=-math.expm1(-costs.recover_s / costs.mtbf_s),
    )


def simple_waste(interval_s: float, costs: Costs) -> tuple[float, float]:
    """The two terms of the well-known formula: saving B/T, and half an interval each failure."""
    return costs.blocking_s / interval_s, interval_s / 2 / costs.mtbf_s


def _timely(x: float) -> float:
    """x/(e^x − 1): what failures leave of cycles that are x mean times between failures long."""
    if x < 700:
        return x / math.expm1(x) if x else 1.0
    return 0.0


def _late(x: float) -> float:
    """1 − x/(e^x − 1): what they take."""
    return x / 2 - x**2 / 12 + x**4 / 720 if x < 1e-2 else 1 - _timely(x)


_GAP_SERIES = (-139 / 5443200, -1 / 17010, 1 / 4320, 1 / 270, 1 / 36, -1 / 3, 1.0)


def lambert_gap(b: float) -> float:
    """1 + W₀(−e^(−1−b)) for b ≥ 0, exact to 13 digits however small or large b is.

    It is 1 − u, where u − ln u = 1 + b and 0 < u ≤ 1. Near b = 0 both 1 − u and the argument of W
    would lose their digits; there it is a series in √(2b).
    """
    if b < 1e-3:
        s = math.sqrt(2 * b)
        value = 0.0
        for coefficient in _GAP_SERIES:
            value = value * s + coefficient
        return value * s
    u = math.exp(-1 - b)  # left of the root, from where Newton's steps only go right
    for _ in range(60):
        step = (u - math.log(u) - 1 - b) * u / (1 - u) if u else 0.0
        u += step
        if abs(step) <= 1e-16:
            break
    return 1 - u


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A place for checkpoints: what a save there blocks, and the failures only it recovers from."""

    blocking_s: float
    failures_per_s: float


def tier_intervals(tiers: Sequence[Tier]) -> tuple[float, ...]:
    """T* of each tier, from the fastest to the safest; a safer one is never saved more often."""
    intervals: list[float] = []
    for tier in tiers:
        own = math.inf
        if tier.failures_per_s > 0:
            own = optimum_s(tier.blocking_s, 1 / tier.failures_per_s)
        intervals.append(max(own, *intervals) if intervals else own)
    return tuple(intervals)


# While a job runs ------------------------------------------------------------------------------

_FIRST_S = 60.0  # the first save comes early: it measures
_LEAST_S = 1.0
_MOST_BLOCKED = 0.035
_MOST_BESIDE = 0.02
_UPLOAD_SLACK = 1.1
_HYSTERESIS = 0.2
_REMEMBERED = 32
_TELLING = 4  # saves from which on their slowdown is more than chance
_ABSURD_S = 1e9


class AutoInterval:
    """The interval a job should keep, from what it has measured so far. Never raises.

    observe_blocking, observe_upload      each save; of all ranks the longest
    observe_slowdown                      each save; of all ranks the mean
    observe_beside                        each save; what the node's cores computed for it elsewhere
    observe_early                         a save that costs more than those to come, of all the most
    observe_exposure                      time that went by without a failure
    observe_failure                       what an earlier attempt went through
    interval_s                            T, from the end of one save to the begin of the next

    It keeps its word: within an attempt the interval changes only for a change of a fifth or more.
    """

    def __init__(
        self,
        *,
        prior_mtbf_s: float = DEFAULT_MTBF_S,
        max_loss_s: float | None = None,
        first_s: float = _FIRST_S,
        most_blocked: float = _MOST_BLOCKED,
        most_beside: float = _MOST_BESIDE,
        state: dict[str, Any] | None = None,
    ) -> None:
        self._first_s, self._most_blocked = first_s, most_blocked
        self.most_beside = most_beside
        self._rate = FailureRate(prior_mtbf_s=max(prior_mtbf_s, _LEAST_S))
        self._max_loss_s = max_loss_s
        self._blocking: deque[float] = deque(maxlen=_REMEMBERED)
        self._slowdowns: deque[float] = deque(maxlen=_REMEMBERED)
        self._uploads: deque[float] = deque(maxlen=_REMEMBERED)
        self._beside: deque[float] = deque(maxlen=_REMEMBERED)
        # Of this process: it pays for what later saves find ready; its upload begins with imports.
        self._first: float | None = None
        self._is_first = True
        self._early: float | None = None  # better than nothing
        self._held_s: float | None = None
        if state:
            try:
                self._recall(state)
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                log.warning("torchett: the interval begins anew: %s", error)

    def observe_blocking(self, seconds: float) -> None:
        """A save has blocked training for so long, by its call and at the fence."""
        if not _is_duration(seconds):
            return
        self._is_first = self._first is None
        if self._is_first:
            self._first = seconds
        else:
            self._blocking.append(seconds)

    def observe_early(self, seconds: float) -> None:
        """A save has blocked for so long that was not carried out as later ones will be."""
        if _is_duration(seconds):
            self._early = seconds

    def observe_slowdown(self, seconds: float) -> None:
        """The steps beside the save took longer than others by so much; or less, by chance."""
        if _is_duration(abs(seconds)) and not self._is_first:
            self._slowdowns.append(seconds)

    def observe_beside(self, seconds: float) -> None:
        """A save has kept all cores of a node busy for so long, beside the loop."""
        if _is_duration(seconds):
            self._beside.append(seconds)

    def observe_upload(self, seconds: float) -> None:
        """A checkpoint was durable so long after the save had ceased to block."""
        if _is_duration(seconds):
            self._uploads.append(seconds)

    def observe_failure(self, exposure_s: float, failures: int) -> None:
        """An attempt ran so long and met so many failures; preemptions with notice are none."""
        if _is_duration(exposure_s) and _is_duration(failures):
            self._rate = self._rate.after(exposure_s, failures)
            self._held_s = None  # a new attempt begins with the best that is known

    def observe_exposure(self, seconds: float) -> None:
        """So much time has gone by without a failure."""
        if _is_duration(seconds):
            self._rate = self._rate.after(seconds)

    def expect_failures_every(self, mtbf_s: float) -> None:
        """Believe this where nothing was seen; what was seen counts as before."""
        self._rate = replace(self._rate, prior_mtbf_s=max(mtbf_s, _LEAST_S))
        self._held_s = None

    @property
    def mtbf_s(self) -> float:
        """The mean time between failures as believed now."""
        return self._rate.mtbf_s

    @property
    def blocking_s(self) -> float | None:
        """What a save costs training, on average over the last ones; None before the first."""
        known = self._known()
        return fmean(known) + self.slowdown_s if known else None

    def _known(self) -> list[float]:
        """What saves have blocked, as far as it tells of those to come."""
        first = self._early if self._first is None else self._first
        return [*self._blocking] or ([] if first is None else [first])

    @property
    def slowdown_s(self) -> float:
        """What a save slows steps down, as far as that is more than chance."""
        if len(self._slowdowns) < _TELLING:
            return 0.0
        error_s = stdev(self._slowdowns) / math.sqrt(len(self._slowdowns))
        return max(0.0, fmean(self._slowdowns) - error_s)

    def interval_s(self) -> float:
        """Seconds to train until the next save begins."""
        blocking_s = self.blocking_s
        if blocking_s is None:
            return self._clamped(min(self._first_s, self._rate.mtbf_s / 10))
        best = optimum_s(blocking_s, self._rate.mtbf_s)
        beside_s = median(self._beside) if self._beside else 0.0
        best = max(best, blocking_s / self._most_blocked - blocking_s, beside_s / self.most_beside)
        best = self._clamped(best)
        if self._held_s is None or abs(best / self._held_s - 1) > _HYSTERESIS:
            self._held_s = best
        return self._clamped(self._held_s)

    def to_json(self) -> dict[str, Any]:
        """What the next attempt should know, as `state`."""
        return {
            "rate": self._rate.to_json(),
            "blocking_s": self._known(),
            "slowdown_s": [*self._slowdowns],
            "upload_s": [*self._uploads],
            "beside_s": [*self._beside],
            "held_s": self._held_s,
        }

    def _recall(self, state: dict[str, Any]) -> None:
        rate = self._rate.recalling(state["rate"])
        blocking = [float(s) for s in state["blocking_s"]]
        uploads = [float(s) for s in state["upload_s"]]
        slowdowns = [float(s) for s in state.get("slowdown_s", ())]
        beside = [float(s) for s in state.get("beside_s", ())]
        held = state["held_s"]
        held = None if held is None else float(held)
        if not all(_is_duration(abs(s)) for s in slowdowns):
            raise ValueError(f"expected durations, found {state!r}")
        if not all(_is_duration(s) for s in (*blocking, *uploads, *beside)) or not (
            held is None or held > 0
        ):
            raise ValueError(f"expected durations, found {state!r}")
        self._rate, self._held_s = rate, held
        self._blocking.extend(blocking)
        self._uploads.extend(uploads)
        self._slowdowns.extend(slowdowns)
        self._beside.extend(beside)

    def _clamped(self, interval_s: float) -> float:
        """Within what the user would lose at most, but not faster than uploads go through."""
        upload_s = _p90(self._uploads)
        if self._max_loss_s is not None:
            interval_s = min(interval_s, self._max_loss_s - upload_s)
        return max(interval_s, _UPLOAD_SLACK * upload_s, _LEAST_S)


def _is_duration(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < _ABSURD_S


def _p90(values: Iterable[float]) -> float:
    """The 90th percentile, by nearest rank; 0 without values."""
    ordered = sorted(values)
    return ordered[math.ceil(0.9 * len(ordered)) - 1] if ordered else 0.0
