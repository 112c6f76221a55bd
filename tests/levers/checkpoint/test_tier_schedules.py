"""Two tiers, each with the interval for the failures that only it recovers from."""

from pathlib import Path

import pytest

from torchett.levers.checkpoint.interval.interval import optimum_s
from torchett.levers.checkpoint.interval.tier_schedules import TierSchedules
from torchett.levers.checkpoint.store_coordinator import Alone
from torchett.levers.checkpoint.stored.storage import Folder

HOUR = 3600.0


def schedules(folder: Path, snapshot_every: str | None) -> TierSchedules:
    return TierSchedules(Alone(), Folder(folder), "auto", snapshot_every, HOUR)


def test_storage_is_saved_to_more_rarely_where_memory_survives_most_failures(
    tmp_path: Path,
) -> None:
    alone = schedules(tmp_path, None).saves.auto
    tiers = schedules(tmp_path, "auto")
    tiers.memory_keeps()
    assert alone is not None
    assert tiers.snapshots is not None
    saves, snapshots = tiers.saves.auto, tiers.snapshots.auto
    assert saves is not None
    assert snapshots is not None
    assert (alone.mtbf_s, saves.mtbf_s, snapshots.mtbf_s) == (HOUR, 4 * HOUR, HOUR / 0.75)
    alone.observe_blocking(0.5)
    saves.observe_blocking(0.5)
    assert alone.interval_s() == pytest.approx(optimum_s(0.5, HOUR))
    assert saves.interval_s() == pytest.approx(optimum_s(0.5, 4 * HOUR))
    saves.observe_failure(2 * HOUR, 11)  # nodes were lost: what is seen outweighs the prior
    assert saves.mtbf_s == pytest.approx(HOUR / 2, rel=0.01)


def test_what_a_save_computes_elsewhere_bounds_both_tiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    tiers = schedules(tmp_path, "auto")
    tiers.memory_keeps()
    tiers.save_is_durable(0.1, 6.0)
    assert tiers.snapshots is not None
    tiers.snapshot_begins(0.1, 3.0)
    for schedule, cores_s in ((tiers.saves, 3.0), (tiers.snapshots, 1.5)):
        assert schedule.auto is not None
        schedule.auto.observe_blocking(0.001)
        assert schedule.auto.interval_s() == pytest.approx(cores_s / 0.01)
