"""A fleet's segments are of days, and of weeks once these are over: no row is lost or doubled."""

import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from torchett.fleet import Fleet
from torchett.fleet.figures import job_report, newest, shares, whole
from torchett.fleet.storage.segments import first_day_of, last_day_of, week_of
from torchett.fleet.storage.upkeep import compact, retain
from torchett.fleet.windows import Span

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import _fleets  # noqa: E402
from _histories import Long  # noqa: E402

END_S = _fleets.day("2026-11-19") + 4 * 3600
NOW = datetime.fromtimestamp(END_S, UTC).replace(tzinfo=None)


def rows(fleet: Fleet) -> list[Any]:
    """All rows of all jobs, with what is summed from them."""
    found = [
        fleet.query(f"SELECT * FROM {view} ORDER BY ALL").to_pylist()
        for view in ("jobs", "attempts", "job_hours", "hours")
    ]
    days = "SELECT day, team, model, account, sum(ns) FROM days GROUP BY ALL ORDER BY ALL"
    return [*found, fleet.query(days).to_pylist(), shares(fleet, "team", Span())]


def days(fleet: Fleet) -> list[str]:
    return [row["day"] for row in fleet.state.rows("SELECT day FROM segments ORDER BY day")]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled") / "fleet"
    _fleets.fill(folder, end_s=END_S, days=50, jobs=120).close()
    return folder


@pytest.fixture
def fleet(filled: Path, tmp_path: Path) -> Iterator[Fleet]:
    shutil.copytree(filled, tmp_path / "fleet")
    with Fleet.open(tmp_path / "fleet") as opened:
        yield opened


def test_a_week_is_named_by_its_monday() -> None:
    assert week_of("2026-11-19") == week_of("2026-11-16") == week_of("2026-11-22") == "2026-11-16+7"
    assert week_of("2026-11-16+7") == "2026-11-16+7"
    assert (first_day_of("2026-11-16+7"), last_day_of("2026-11-16+7")) == (
        "2026-11-16",
        "2026-11-22",
    )
    assert first_day_of("2026-11-19") == last_day_of("2026-11-19") == "2026-11-19"


def test_weeks_that_are_over_become_one_segment_each(fleet: Fleet) -> None:
    before = rows(fleet)
    assert len(days(fleet)) > 30
    assert compact(fleet, NOW) > 20
    after = days(fleet)
    assert rows(fleet) == before
    old = [day for day in after if day.endswith("+7")]
    assert old == sorted(set(old))
    assert len(old) >= 6
    assert max(map(last_day_of, old)) == "2026-11-08"  # the week after is over since Sunday only
    assert {day for day in after if day not in old} <= {
        "live",
        *(str((NOW - timedelta(days=n)).date()) for n in range(11)),
    }
    assert compact(fleet, NOW) == 0


def test_weeks_are_joined_a_few_at_a_time(fleet: Fleet) -> None:
    compact(fleet, NOW, most_weeks=1)
    assert [day for day in days(fleet) if day.endswith("+7")] == ["2026-11-02+7"]


def test_a_job_of_a_week_is_found_and_replaced(fleet: Fleet, tmp_path: Path) -> None:
    Long(steps=50, restarts=0).write_records(tmp_path / "runs" / "a")
    fleet.roll_up([tmp_path / "runs" / "a"])
    compact(fleet, NOW)
    before = rows(fleet)
    shown = job_report(fleet, "a")
    fleet.roll_up([tmp_path / "runs" / "a"])
    assert rows(fleet) == before
    assert job_report(fleet, "a") == shown
    fleet.roll_up([tmp_path / "runs" / "a"], labels={"team": "other"})
    assert whole(shares(fleet, "team", Span())) == whole(
        [before[-1][i] for i in range(len(before[-1]))]
    )
    assert job_report(fleet, "a")["labels"]["team"] == "other"


def test_a_segment_that_was_replaced_meanwhile_is_not_joined(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(fleet)
    join = fleet.segments.join

    def replaced(*args: Any, **more: Any) -> str:
        name = join(*args, **more)
        monkeypatch.setattr(fleet.segments, "join", join)
        compact(fleet, NOW, most_weeks=1)  # as another process would
        return name

    monkeypatch.setattr(fleet.segments, "join", replaced)
    assert compact(fleet, NOW, most_weeks=1) == 0
    assert rows(fleet) == before


@pytest.mark.parametrize("most", [1, 5, 40, 1000])
def test_the_newest_jobs_are_in_the_newest_segments(fleet: Fleet, most: int) -> None:
    everything = newest(fleet, most, {"project": "default"})
    assert newest(fleet, most) == everything
    compact(fleet, NOW)
    assert newest(fleet, most) == everything
    for day in ("2026-10-07", "2026-11-04"):  # beside its week, as a job that was rolled up anew
        moved = fleet.query(f"SELECT job FROM jobs WHERE began::DATE = '{day}'").to_pylist()
        assert moved
        split(fleet, day, {("default", row["job"]) for row in moved})
    assert newest(fleet, most) == everything


def split(fleet: Fleet, day: str, jobs: set[tuple[str, str]]) -> None:
    """Put the rows of these jobs into a segment of their day."""
    from torchett.fleet.state import PUT_SEGMENT
    from torchett.fleet.storage.segments import with_days, without_jobs

    (name,) = (
        row["name"]
        for row in fleet.state.rows("SELECT name FROM segments WHERE day = ?", week_of(day))
    )
    tables = fleet.segments.read(week_of(day), name)
    names = {(row["project"], row["job"]) for row in tables["jobs"].to_pylist()}
    for period, gone in ((week_of(day), jobs), (day, names - jobs)):
        part = with_days(without_jobs(tables, gone))
        made = fleet.segments.write(part, period)
        with fleet.state.change() as db:
            db.execute(PUT_SEGMENT, (made, period, len(part["jobs"]), None))
    with fleet.state.change() as db:
        db.execute("DELETE FROM segments WHERE name = ?", [name])


def test_ls_reads_the_newest_days_only(fleet: Fleet) -> None:
    compact(fleet, NOW)
    read = [day for day, _ in fleet.newest_segments(1)]
    assert read[0] == "live"
    assert len(read) == 2
    assert not [day for day, _ in fleet.newest_segments(20) if day.endswith("+7")]


def test_rows_of_old_weeks_are_removed_whole(fleet: Fleet) -> None:
    compact(fleet, NOW)
    first = min(day for day in days(fleet) if day != "live")
    kept = fleet.query("SELECT job FROM jobs WHERE ended >= '2026-10-20' ORDER BY job").to_pylist()
    would = retain(fleet, NOW, rows_days=30, dry_run=True)
    removed = retain(fleet, NOW, rows_days=30)
    assert (would.jobs, would.segments) == (removed.jobs, removed.segments)
    assert removed.jobs > 0
    assert first not in days(fleet)
    left = [row["job"] for row in fleet.query("SELECT job FROM jobs").to_pylist()]
    assert {row["job"] for row in kept} <= set(left)
    assert {row["job"] for row in fleet.state.rows("SELECT job FROM jobs")} == set(left)


def test_many_small_segments_become_one(tmp_path: Path) -> None:
    fleet = Fleet.open(tmp_path / "fleet")
    for i in range(14):
        Long(steps=50, restarts=0).write_records(tmp_path / f"job{i}")
        fleet.roll_up([tmp_path / f"job{i}"])
    assert 1 < len(days(fleet)) <= 12
    sql = "SELECT sum(ns)::BIGINT AS ns, count(DISTINCT job) AS n FROM job_hours"
    before = fleet.query(sql).to_pylist()
    assert before[0]["n"] == 14
    assert compact(fleet, most=1) > 1
    assert fleet.query(sql).to_pylist() == before
    assert days(fleet) == ["2020-09-07+7"]
    fleet.roll_up([tmp_path / "job3"])
    assert fleet.query(sql).to_pylist() == before


def test_rows_from_before_an_account_was_known_are_read_with_zeros(fleet: Fleet) -> None:
    """As another release leaves them: its attempts have a column less."""
    before = rows(fleet)
    day, name = next(
        (row["day"], row["name"])
        for row in fleet.state.rows("SELECT day, name FROM segments WHERE day != 'live'")
    )
    path = fleet.segments.path("attempts", day, name)
    table = pq.read_table(path, partitioning=None)
    assert not any(table["publish_ns"].to_pylist())
    pq.write_table(table.drop_columns(["publish_ns"]), path)
    with fleet.state.change() as db:
        db.execute("UPDATE segments SET layout = 'older' WHERE name = ?", [name])
    with Fleet.open(fleet.folder) as opened:
        assert rows(opened) == before
        compact(opened, NOW)
        assert rows(opened) == before
        assert not opened.state.rows("SELECT 1 FROM segments WHERE layout = 'older'")
