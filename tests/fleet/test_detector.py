"""The detector finds what changed, keeps quiet otherwise, and proves what it says."""

import sys
from datetime import datetime
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import _fleets

from torchett.fleet import Fleet
from torchett.fleet.detector.budget import LEARNT_DAYS, WATCHED_DAYS, changes, limits
from torchett.fleet.detector.cusum import DAY, alarms, pooled
from torchett.fleet.detector.proof import AFTER, BEFORE, EARLIER, Cube, proof, rounded
from torchett.fleet.detector.regressions import RULE, Detector
from torchett.fleet.detector.sentence import sentence
from torchett.fleet.detector.settings import Settings

NOW = datetime(2026, 11, 19)
END_S = _fleets.day("2026-11-19")
CHANGED = LEARNT_DAYS * DAY + 30


def quiet(series: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    hours = (LEARNT_DAYS + WATCHED_DAYS) * DAY
    shares = 0.02 + 0.004 * rng.standard_normal((series, hours))
    return shares, np.full((series, hours), 50.0)


def limit_of(shares: np.ndarray, weights: np.ndarray):  # type: ignore[no-untyped-def]
    return limits(shares, weights, np.arange(len(shares)), replays=10)


def test_a_change_is_found_with_its_hour_and_nothing_else_is() -> None:
    shares, weights = quiet(200)
    limit = limit_of(shares, weights)
    assert changes(shares, weights, limit) == []
    shares[17, CHANGED:] += 0.02  # five deviations
    (found,) = changes(shares, weights, limit)
    assert found.series == 17
    assert found.since == CHANGED
    assert CHANGED + 4 <= found.at < CHANGED + 24


def test_a_small_change_is_found_over_days() -> None:
    shares, weights = quiet(200)
    limit = limit_of(shares, weights)
    shares[3, CHANGED:] += 0.005  # hardly more than one deviation
    (found,) = changes(shares, weights, limit)
    assert (found.series, found.speed) == (3, "days")


@pytest.mark.parametrize("hours", [1, 2, 3])
def test_a_spike_is_no_change(hours: int) -> None:
    shares, weights = quiet(50)
    limit = limit_of(shares, weights)
    shares[5, CHANGED : CHANGED + hours] += 0.03
    assert changes(shares, weights, limit) == []


def test_hours_without_hardware_say_nothing() -> None:
    shares, weights = quiet(50)
    limit = limit_of(shares, weights)
    shares[5, CHANGED:], weights[5, CHANGED:] = 1.0, 0.0
    shares[6, CHANGED:], weights[6, CHANGED:] = 0.5, 0.5  # a hundredth of the usual hardware
    assert changes(shares, weights, limit) == []
    few = weights * (np.arange(weights.shape[1]) >= CHANGED - 48)  # a class of two days
    assert changes(shares, few, limit) == []


def test_sums_begin_again_after_quiet_hours() -> None:
    z = np.array([[0, 5, 5, -9, 5, 5, 5, 5.0]])
    found = alarms(z, 3.5, slack=3.0)
    assert (found.since.tolist(), found.at.tolist()) == ([1], [2])
    assert len(alarms(z, 100.0, slack=3.0).series) == 0


def test_days_are_weighted_means() -> None:
    x, w = pooled(np.array([[0.0, 1.0, 0.5, 0.5]]), np.array([[3.0, 1.0, 1.0, 1.0]]), 2)
    assert x.tolist() == [[0.25, 0.5]]
    assert w.tolist() == [[4.0, 2.0]]


# Proofs ------------------------------------------------------------------------------------------


def cube(rows: list[tuple[int, str, str, str, int]]) -> Cube:
    """Rows of (when, account, job, torch, ns); a job's torch is that of any of its rows."""
    accounts = sorted({row[1] for row in rows})
    jobs = {row[2]: row[3] for row in rows}
    return Cube(
        when=np.array([row[0] for row in rows]),
        account=np.array([accounts.index(row[1]) for row in rows]),
        job=np.array([list(jobs).index(row[2]) for row in rows]),
        ns=np.array([row[4] for row in rows]),
        accounts=accounts,
        labels={"torch": np.array(list(jobs.values()), dtype=object)},
        jobs=len(jobs),
    )


def some_jobs(
    lost: dict[str, float], *, size: int = 1000, count: int = 8
) -> list[tuple[int, str, str, str, int]]:
    """Jobs of torch 2.14 and 2.15 before and after a change; `lost` to recompile after it."""
    rng, rows = np.random.default_rng(3), []
    for when in (EARLIER, BEFORE, AFTER):
        for torch in ("2.14", "2.15"):
            for i in range(count):
                job = f"{torch}-{when}-{i}"
                wait = int(size * rng.uniform(0.04, 0.08))
                again = int(size * lost[torch]) if when == AFTER else 0
                rows += [
                    (when, "data_wait", job, torch, wait),
                    (when, "recompile", job, torch, again),
                    (when, "effective", job, torch, size - wait - again),
                ]
    return rows


ROWS = some_jobs({"2.14": 0.0, "2.15": 0.12})


def test_contributions_sum_to_the_drop_exactly() -> None:
    found = proof(cube(ROWS))
    assert found is not None
    effective = [
        Fraction(sum(row[4] for row in ROWS if row[:2] == (when, "effective")), 16_000)
        for when in (BEFORE, AFTER)
    ]
    assert found.drop == 100 * (effective[0] - effective[1])
    assert found.contributions[0][0] == found.account == "recompile"
    shown = rounded([points for _, points in found.contributions], found.drop)
    assert sum(shown) == Fraction(round(found.drop * 10), 10)


def test_the_jobs_without_which_nothing_fell_are_named() -> None:
    found = proof(cube(ROWS))
    assert found is not None
    assert found.culprit is not None
    assert (found.culprit.label, found.culprit.value) == ("torch", "2.15")
    assert abs(found.culprit.rest) < 0.2 * float(found.drop)
    assert found.culprit.points + found.culprit.rest == pytest.approx(float(found.drop))


def test_no_label_is_named_where_all_jobs_fell() -> None:
    found = proof(cube(some_jobs({"2.14": 0.06, "2.15": 0.06})))
    assert found is not None
    assert (found.account, found.culprit) == ("recompile", None)
    said = sentence({"team": "ads"}, NOW, found)
    assert said.endswith("; in jobs of every label.")


def test_one_large_job_does_not_make_its_label_guilty() -> None:
    # A job of 2.14 as large as ten others waits more than usual; all of 2.15 recompile.
    rows = some_jobs({"2.14": 0.0, "2.15": 0.03})
    rows += [
        (AFTER, "data_wait", "large", "2.14", 1000),
        (AFTER, "effective", "large", "2.14", 9000),
    ]
    found = proof(cube(rows), ["recompile", "data_wait"])
    assert found is not None
    assert found.culprit is not None
    assert (found.account, found.culprit.value) == ("recompile", "2.15")


def test_the_account_is_one_that_alarmed() -> None:
    found = proof(cube(ROWS), ["data_wait"])
    assert found is not None
    assert found.account in ("data_wait", None)


def test_a_value_that_nobody_had_before_is_a_suspect() -> None:
    rows = [
        (when, account, job, "2.16" if when == AFTER and torch == "2.15" else torch, ns)
        for when, account, job, torch, ns in ROWS
    ]
    found = proof(cube(rows))
    assert found is not None
    assert found.suspects == ["torch 2.16"]


def test_a_regression_of_a_fleet_is_found_and_explained(tmp_path: Path) -> None:
    put = _fleets.Regression(
        since_s=END_S - 2 * 86400, labels={"team": "ads", "torch": "2.15"},
        account="recompile", points=25.0,
    )  # fmt: skip
    _fleets.fill(tmp_path, end_s=END_S, days=38, jobs=500, seed=2, regressions=[put], live=0)
    with Fleet.open(tmp_path) as fleet:
        notices = Detector(Settings(classes=("team",))).look(fleet, NOW)
    (found,) = [one for one in notices if one.subject == {"team": "ads"}]
    assert found.rule == RULE
    assert found.details["noticed_in"] == "recompile"
    assert found.details["culprit"]["label"] == "torch"
    assert found.details["culprit"]["value"] == "2.15"
    assert "recompile −" in found.text
    assert found.details["since"].startswith("2026-11-17")
    contributions = found.details["contributions"].values()
    assert sum(contributions) == pytest.approx(found.details["drop_points"])
    assert found.expected is not None
    assert found.details["drop_points"] == pytest.approx(found.expected - found.value)
