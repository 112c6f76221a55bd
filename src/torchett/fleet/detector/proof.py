"""Why effective time fell: contributions that sum to the drop, and the jobs that made it.

Without the jobs that are named it would not have fallen.

    ETT of team ads −2.3 points since Tue 17 Nov 14:00 UTC: recompile −1.9, data_wait −0.4;
    of which torch 2.15 jobs −2.2: without them −0.1.

The contribution of an account is how much its share of all time rose. All shares sum to one, so
the contributions of all accounts sum to the drop exactly. A label's contribution is the drop with
all jobs less the drop when the jobs of one of its values are left out: one is taken away at a time.
Named is the value that explains the jobs' own shares best; where all jobs rose, none is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from torchett.fleet.detector.cusum import FLOOR, Floats, Ints

EFFECTIVE = "effective"
EARLIER, BEFORE, AFTER = range(3)  # earlier than a week before the change; in that week; since it
_LEAST_PART = 0.4  # of the account's rise, that goes away without the jobs that are named
_SHORT = 0.1  # of the median job's time: a job of so much counts half
_MOST_VALUES = 200
_NEW = 0.02  # of the time: a value with less before, and more than four times it after, is new
_MOST_SUSPECTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cube:
    """Time around a change, by job and account: rows of sums; and each job's labels."""

    when: Ints  # EARLIER, BEFORE or AFTER
    account: Ints  # a place in `accounts`
    job: Ints  # a place in each of `labels`
    ns: Ints
    accounts: Sequence[str]
    labels: Mapping[str, npt.NDArray[np.object_]]
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Jobs with one value of a label, and what is left of the drop without them."""

    label: str
    value: str
    share: float  # of the time after the change
    points: float  # of the drop, that goes away without them
    rest: float  # that remains
    account_points: float  # of the largest account's contribution, that goes away
    new: bool  # whether hardly any job had it before


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A drop of effective time, taken apart."""

    before: float  # percent effective
    after: float
    contributions: Sequence[tuple[str, Fraction]]  # points that each account took, largest first
    account: str | None  # the one that rose beyond what jobs differ by
    culprit: Culprit | None  # None: no one label's jobs explain it
    suspects: Sequence[str]  # labels whose values changed then: "torch 2.15"

    @property
    def drop(self) -> Fraction:
        return sum((points for _, points in self.contributions), Fraction())


def proof(cube: Cube, noticed: Sequence[str] = ()) -> Proof | None:
    """What took the place of effective time; None if there is no time on one of both sides.

    `noticed` are the accounts that alarmed: one of them, if it rose, is the account that is named.
    """
    shares = _shares(cube, np.ones(cube.jobs, dtype=bool))
    if shares is None:
        return None
    moved = [(name, 100 * (after - before)) for name, (before, after) in shares.items()]
    contributions = sorted(
        ((name, points) for name, points in moved if name != EFFECTIVE and points),
        key=lambda item: -item[1],
    )
    asked = [name for name in noticed if name in cube.accounts] or [
        name for name, points in contributions[:1] if points > 0
    ]
    before, after = shares.get(EFFECTIVE, (Fraction(), Fraction()))
    drop = float(100 * (before - after))
    guess = _best_guess(cube, asked) if drop > 0 else None
    return Proof(
        before=float(100 * before),
        after=float(100 * after),
        contributions=contributions,
        account=None if guess is None else guess.account,
        culprit=None if guess is None else _culprit(cube, guess, drop),
        suspects=_suspects(cube),
    )


def _sums(cube: Cube, jobs: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """ns by account of these jobs, before and after."""
    count, mine = len(cube.accounts), jobs[cube.job]
    found = []
    for when in (BEFORE, AFTER):
        which = mine & (cube.when == when)
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, cube.account[which], cube.ns[which])
        found.append(total)
    return found[0], found[1]


def _shares(cube: Cube, jobs: npt.NDArray[np.bool_]) -> dict[str, tuple[Fraction, Fraction]] | None:
    before, after = (side.tolist() for side in _sums(cube, jobs))
    whole = sum(before), sum(after)
    if not all(whole):
        return None
    return {
        name: (Fraction(a, whole[0]), Fraction(b, whole[1]))
        for name, a, b in zip(cube.accounts, before, after, strict=True)
    }


def _drop(cube: Cube, jobs: npt.NDArray[np.bool_], account: str) -> tuple[float, float] | None:
    """Points of the whole drop and of one account, of these jobs only."""
    shares = _shares(cube, jobs)
    if shares is None:
        return None
    before, after = shares.get(EFFECTIVE, (Fraction(), Fraction()))
    a, b = shares[account]
    return float(100 * (before - after)), float(100 * (b - a))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guess:
    """An account that rose, and in whose jobs: those with one value of a label, or in all."""

    score: float
    account: str
    label: str | None = None
    value: str | None = None


def _best_guess(cube: Cube, accounts: Sequence[str]) -> _Guess | None:
    """Which of these accounts rose, in the jobs of which value of a label.

    Each guess is a model of the share that each job spent in the account: jobs with the value have
    one mean before the change and one after it, all others one throughout. The guess that leaves
    least of the differences between jobs unexplained is taken (Bayes' information criterion); so
    one large job does not decide. That all jobs rose is a guess, too.
    """
    found = []
    for account in accounts:
        rise = _rise(cube, account, np.ones(cube.jobs, dtype=bool))
        if rise is None or rise <= 0:
            continue
        model = _JobShares.of(cube, account)
        found.append(_Guess(score=model.gain_of_all(), account=account))
        for label, values in cube.labels.items():
            known = sorted({value for value in values if value is not None})
            for value in known if 1 < len(known) < _MOST_VALUES else ():
                mine = values == value
                left = _rise(cube, account, ~mine)
                if left is None or rise - left < _LEAST_PART * rise:
                    continue
                gain = model.gain_of(mine)
                found.append(_Guess(score=gain, account=account, label=label, value=value))
    return max(found, key=lambda guess: guess.score, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobShares:
    """The share of one account in each job's time: once before the change, once after it."""

    share: Floats
    weight: Floats  # nearly 1; less for a job that hardly ran
    job: Ints
    after: npt.NDArray[np.bool_]

    @staticmethod
    def of(cube: Cube, account: str) -> "_JobShares":
        place = 2 * cube.job + (cube.when == AFTER)
        time = np.bincount(place, cube.ns, 2 * cube.jobs)
        mine = cube.account == list(cube.accounts).index(account)
        spent = np.bincount(place[mine], cube.ns[mine], 2 * cube.jobs)
        known = np.flatnonzero(time > 0)
        short = _SHORT * float(np.median(time[known]))
        return _JobShares(
            share=spent[known] / time[known],
            weight=time[known] / (time[known] + short),
            job=known // 2,
            after=known % 2 == 1,
        )

    def gain_of_all(self) -> float:
        return self._gain(self.after, ~self.after)

    def gain_of(self, jobs: npt.NDArray[np.bool_]) -> float:
        """What is gained by means of their own for these jobs; −∞ if theirs did not rise."""
        mine = jobs[self.job]
        before, after = mine & ~self.after, mine & self.after
        usual = self._mean(before) if before.any() else self._mean(~self.after)
        if self._mean(after) <= usual:
            return -math.inf
        return self._gain(~mine, before, after)

    def _gain(self, *parts: npt.NDArray[np.bool_]) -> float:
        count = float(self.weight.sum())
        means = sum(part.any() for part in parts)
        whole = self._unexplained(np.ones(len(self.job), dtype=bool))
        rest = sum(self._unexplained(part) for part in parts)
        floor = count * FLOOR**2
        gain = math.log((whole + floor) / (rest + floor))
        return 0.5 * (count * gain - (means - 1) * math.log(count + 1))

    def _mean(self, which: npt.NDArray[np.bool_]) -> float:
        weight = self.weight[which]
        return float((self.share[which] * weight).sum() / max(weight.sum(), 1e-12))

    def _unexplained(self, which: npt.NDArray[np.bool_]) -> float:
        apart = self.share[which] - self._mean(which)
        return float((self.weight[which] * apart**2).sum())


def _rise(cube: Cube, account: str, jobs: npt.NDArray[np.bool_]) -> float | None:
    """How much the account's share of these jobs' time rose beyond that of all weeks before."""
    mine = jobs[cube.job]
    spent = cube.account == list(cube.accounts).index(account)
    shares = []
    for period in (cube.when != AFTER, cube.when == AFTER):
        whole = float(cube.ns[mine & period].sum())
        if not whole:
            return None
        shares.append(float(cube.ns[mine & period & spent].sum()) / whole)
    return shares[1] - shares[0]


def _culprit(cube: Cube, guess: _Guess, drop: float) -> Culprit | None:
    """What is left of the drop when these jobs are taken away."""
    if guess.label is None or guess.value is None:
        return None
    mine = cube.labels[guess.label] == guess.value
    every = np.ones(cube.jobs, dtype=bool)
    rest, most = _drop(cube, ~mine, guess.account), _drop(cube, every, guess.account)
    if rest is None or most is None:
        return None
    return Culprit(
        label=guess.label,
        value=guess.value,
        share=_part(cube, mine, AFTER),
        points=drop - rest[0],
        rest=rest[0],
        account_points=most[1] - rest[1],
        new=_is_new(cube, mine),
    )


def _part(cube: Cube, jobs: npt.NDArray[np.bool_], when: int) -> float:
    """The part of all time of a period that these jobs had."""
    period = cube.when == when
    whole = float(cube.ns[period].sum())
    return float(cube.ns[period & jobs[cube.job]].sum()) / whole if whole else 0.0


def _is_new(cube: Cube, jobs: npt.NDArray[np.bool_]) -> bool:
    before, after = (_part(cube, jobs, when) for when in (BEFORE, AFTER))
    return before < _NEW and after > 4 * max(before, _NEW)


def _suspects(cube: Cube) -> list[str]:
    """Label values that hardly any job had before, those of most time first."""
    found = []
    for label, values in cube.labels.items():
        for value in {value for value in values if value is not None}:
            mine = values == value
            if _is_new(cube, mine):
                found.append((-_part(cube, mine, AFTER), f"{label} {value}"))
    return [name for _, name in sorted(found)[:_MOST_SUSPECTS]]


def rounded(values: Sequence[Fraction], total: Fraction, decimals: int = 1) -> list[Fraction]:
    """The values rounded so that they sum to the rounded total: the largest remainders go up."""
    unit = Fraction(1, 10**decimals)
    low = [value // unit for value in values]
    missing = round(total / unit) - sum(low)
    order = sorted(range(len(values)), key=lambda i: -(values[i] / unit - low[i]))
    for i in order[: max(missing, 0)]:
        low[i] += 1
    return [count * unit for count in low]
