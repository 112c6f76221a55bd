"""The fleet's detector by replay: false alarms, delays, and whether it names what was put in.

    python benchmarks/detector.py [--weeks 1000] [--slow-weeks 150] [--names 300] [--quick] [--json]

A size of 0 leaves that part out.

Noise: hourly shares of 40 accounts × 20 classes as Philly's jobs make them (see _noise.py), ten
weeks, cut into blocks of whole days and laid out anew: four weeks to learn from, one to watch.
Limits are learnt from four weeks of the same fleet. A change of 5 σ: of an hour of that series with
as much hardware as it has (fewer jobs: larger σ), and of all its hours, whatever ran in them.
"""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ruptures
from _detector_names import named
from _noise import ACCOUNTS, CLASSES, DAY, noise
from _table import Column, Report, Sheet, bar, options

from torchett.fleet.detector.budget import Limits, changes, drawn_days, limits
from torchett.fleet.detector.cusum import HOURLY, baseline, quietness

LEARNT, WATCHED, CHANGED = 28 * DAY, 7 * DAY, 29 * DAY
Row = dict[str, Any]


class Replay:
    """Bootstrapped fleets of five weeks each."""

    def __init__(self, seed: int) -> None:
        made = noise()
        self.origin = made.origin
        self.shares = made.shares.reshape(CLASSES * ACCOUNTS, -1)
        self.weights = np.repeat(made.weights, ACCOUNTS, axis=0)
        self.classes = np.repeat(np.arange(CLASSES), ACCOUNTS)
        self.rng = np.random.default_rng(seed)
        self.on = np.arange(LEARNT + WATCHED) >= CHANGED

    def weeks(self) -> tuple[Any, Any]:
        hours = drawn_days(self.shares.shape[1] // DAY, 35, self.rng)
        return self.shares[:, hours], self.weights[:, hours]

    def sigmas(self, x: Any, w: Any) -> dict[str, Any]:
        base = baseline(x[:, :LEARNT], w[:, :LEARNT])
        whole = base.deviation[:, None]
        return {
            "of all hours": whole,
            "of the stratum": whole / np.maximum(quietness(w, base), 0.3),
        }


def replayed(weeks: int, injected_every: int) -> tuple[Row, list[Row], Limits]:
    """False alarms in every week; delays of 5 σ and of 1, 2, 5 points in some."""
    fleet = Replay(1)
    began = time.process_time()
    learnt = fleet.shares[:, :LEARNT], fleet.weights[:, :LEARNT]
    limit = limits(*learnt, fleet.classes, budget=1.0)
    learning_s = time.process_time() - began
    false, took = [], 0.0
    delays: dict[str, list[Any]] = {}
    for week in range(weeks):
        x, w = fleet.weeks()
        began = time.process_time()
        found = changes(x, w, limit)
        took += time.process_time() - began
        false.append(len({int(fleet.classes[one.series]) for one in found}))
        if week % injected_every:
            continue
        sizes = {f"5 σ {name}": 5 * sigma for name, sigma in fleet.sigmas(x, w).items()}
        sizes |= {f"{points} points": points / 100 for points in (1, 2, 5)}
        for name, size in sizes.items():
            at = np.full(len(x), np.inf)
            for one in changes(x + size * fleet.on, w, limit):
                at[one.series] = one.at - CHANGED + 1
            delays.setdefault(name, []).append(at)
    rows = []
    for name, found_at in delays.items():
        at = np.concatenate(found_at)
        rows.append(
            {
                "change": name,
                "series": len(at),
                "within_24h": float((at <= 24).mean()),
                "within_week": float(np.isfinite(at).mean()),
                "median_h": float(np.median(at)),
            }
        )
    row = {
        "noise": fleet.origin,
        "weeks": weeks,
        "false_a_week": float(np.mean(false)),
        "weeks_without": float((np.array(false) == 0).mean()),
        "learning_s": learning_s,
        "look_ms": 1000 * took / weeks,
    }
    return row, rows, limit


# Candidates ------------------------------------------------------------------------------------


def pelt(z: Any, penalty: float) -> int:
    """The last change that PELT (ruptures, l2, at least 4 hours a segment) finds upwards; −1."""
    cuts = ruptures.KernelCPD(kernel="linear", min_size=4).fit(z).predict(pen=penalty)
    if len(cuts) < 2 or z[cuts[-2] :].mean() <= z[: cuts[-2]].mean():
        return -1
    return int(cuts[-2])


def e_divisive(z: Any, limit: float) -> int:
    """The split with the largest energy distance, where it exceeds the limit and is upwards; −1."""
    n = len(z)
    apart = np.abs(z[:, None] - z[None, :])
    total = apart.cumsum(axis=0).cumsum(axis=1)
    k = np.arange(4, n - 4)
    first = total[k - 1, k - 1]
    both = total[k - 1, n - 1] - first
    second = total[n - 1, n - 1] - 2 * total[k - 1, n - 1] + first
    energy = 2 * both / (k * (n - k)) - first / k**2 - second / (n - k) ** 2
    score = energy * k * (n - k) / n
    best = int(score.argmax())
    split = int(k[best])
    return split if score[best] > limit and z[split:].mean() > z[:split].mean() else -1


def candidates(weeks: int, limit: Limits) -> list[Row]:
    """Each at the setting that makes about one false alarm a fleet and week, on the same series.

    PELT and e-divisive look at two weeks of deviations of one series, every six hours. One series
    of each class is tried; a false alarm counts for the class as for ours.
    """
    fleet = Replay(3)
    drawn = []
    for _ in range(weeks):
        x, w = fleet.weeks()
        pick = np.arange(CLASSES) * ACCOUNTS + fleet.rng.integers(0, ACCOUNTS, CLASSES)
        x, w = x[pick], w[pick]
        changed = x + 5 * fleet.sigmas(x, w)["of the stratum"] * fleet.on
        drawn.append([_two_weeks(one, w) for one in (x, changed)])
    rows = []
    tried = {
        "PELT (ruptures)": (pelt, (40.0, 80.0, 160.0, 320.0, 640.0)),
        "e-divisive": (e_divisive, (20.0, 40.0, 80.0, 160.0)),
        "cumulative sum": (_cumulative, (limit.hours,)),
    }
    for name, (find, settings) in tried.items():
        for setting in settings:
            began = time.process_time()
            false, late, at = 0, 0, []
            for quiet, changed in drawn:
                for row, moved in zip(quiet, changed, strict=True):
                    false += _first(find, row, setting, 0) is not None
                    found = _first(find, moved, setting, DAY)
                    late += found is None or found > 24
                    at.append(np.inf if found is None else found)
            series = weeks * CLASSES
            rows.append(
                {
                    "detector": name,
                    "setting": setting,
                    "false": false / series,
                    "within_24h": 1 - late / series,
                    "median_h": float(np.median(at)),
                    "ms": 1000 * (time.process_time() - began) / series,
                }
            )
    return rows


def _two_weeks(x: Any, w: Any) -> Any:
    """Deviations of the last two weeks, the first of them learnt from."""
    base = baseline(x[:, :LEARNT], w[:, :LEARNT])
    z = (x - base.mean[:, None]) / base.deviation[:, None]
    z = np.clip(z, -HOURLY.clip, HOURLY.clip) * quietness(w, base)
    return z[:, LEARNT - WATCHED :]


def _cumulative(z: Any, limit: float) -> int:
    total, since = 0.0, 0
    for place in range(WATCHED, len(z)):
        total = max(total + z[place] - HOURLY.slack, 0.0)
        if total == 0.0:
            since = place + 1
        if total > limit:
            return since
    return -1


def _first(find: Any, z: Any, setting: float, changed: int) -> int | None:
    """Hours from the change until it is noticed, looking every six hours."""
    for upto in range(WATCHED + changed + 6, len(z) + 1, 6):
        begun = find(z[:upto], setting)
        if begun >= WATCHED + changed - 12:
            return upto - WATCHED - changed
    return None


SHARE = "{:.1%}".format


def _add_replay(report: Report, whole: Row, delays: list[Row]) -> None:
    report.sheets += [
        Sheet(
            "false alarms: 40 accounts × 20 classes",
            [Column("noise", "noise"), Column("weeks", "weeks", str),
             Column("false_a_week", "false alarms a fleet and week", "{:.2f}".format),
             Column("weeks_without", "weeks without", SHARE),
             Column("learning_s", "learning limits, CPU s", "{:.2f}".format),
             Column("look_ms", "one look, CPU ms", "{:.0f}".format)],
            [whole],
        ),
        Sheet(
            "delays",
            [Column("change", "change"), Column("series", "series", str),
             Column("within_24h", "within 24 h", SHARE), Column("within_week", "in 6 days", SHARE),
             Column("median_h", "median h", "{:.0f}".format)],
            delays,
        ),
    ]  # fmt: skip
    stratum = next(row for row in delays if row["change"].endswith("stratum"))
    report.bars += [
        bar("false alarms a fleet and week", "≤ 1", whole["false_a_week"],
            whole["false_a_week"] <= 1, ""),
        bar("5 σ of the stratum within 24 h", "≥ 95%", 100 * stratum["within_24h"],
            stratum["within_24h"] >= 0.95, "%"),
    ]  # fmt: skip


def _add_candidates(report: Report, rows: list[Row]) -> None:
    sheet = Sheet(
        "candidates: 5 σ of the stratum, looking every 6 h",
        [Column("detector", "detector"), Column("setting", "setting", "{:.0f}".format),
         Column("false", "false alarms a series and week", "{:.4f}".format),
         Column("within_24h", "within 24 h", SHARE),
         Column("median_h", "median h", "{:.0f}".format),
         Column("ms", "CPU ms a series and week", "{:.1f}".format)],
        rows,
        "one false alarm a fleet and week is 0.0013 (800 series)",
    )  # fmt: skip
    report.sheets.append(sheet)


def _add_names(report: Report, rows: list[Row]) -> None:
    sheet = Sheet(
        "named right",
        [Column("points", "drop, points", "{:.0f}".format), Column("trials", "trials", str),
         Column("noticed", "noticed in the week", SHARE), Column("account", "account", SHARE),
         Column("both", "account and label", SHARE), Column("nobody", "no label named", SHARE),
         Column("spared", "drop of all jobs: no label named", SHARE)],
        rows,
        "of those noticed; begun one to five days before the look",
    )  # fmt: skip
    report.sheets.append(sheet)
    report.bars += [
        bar(f"{row['points']:.0f} points named right", "≥ 90%", 100 * row["both"],
            row["both"] >= 0.9, "%") for row in rows
    ]  # fmt: skip


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--weeks", type=int, default=1000)
    parser.add_argument("--slow-weeks", type=int, default=40)
    parser.add_argument("--names", type=int, default=300)
    asked = parser.parse_args()
    weeks, slow, names = (
        (20, 2, 40) if asked.quick else (asked.weeks, asked.slow_weeks, asked.names)
    )
    report = Report("detector")
    learnt = Limits(hours=20.0, days=5.3)
    if weeks:
        whole, delays, learnt = replayed(weeks, max(weeks // 40, 1))
        _add_replay(report, whole, delays)
    if slow:
        _add_candidates(report, candidates(slow, learnt))
    if names:
        _add_names(report, named(names))
    report.show(asked.json)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
