"""What a job says of its checkpoints, in each scheduler's own form."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchett.launch.scheduler.beacon_objects import (
    kueue_annotation,
    kueue_boost,
    kueue_spec,
    volcano_annotation,
)
from torchett.model.beacon import Beacon, from_slurm_comment, parse_beacon, slurm_comment
from torchett.model.errors import InputError
from torchett.record.beacon import read_beacon, write_beacon

BEACON = Beacon(
    job="gpt",
    gpus=8,
    durable_step=1200,
    durable_s=1_730_000_000.0,
    save_s=33.0,
    due_s=1_730_001_833.0,
    restart_s=202.0,
    preemptions=1,
    saves_on_signal=True,
)

beacons = st.builds(
    Beacon,
    job=st.text(min_size=1, max_size=9).filter(lambda text: text.isprintable()),
    gpus=st.integers(1, 4096),
    durable_step=st.integers(-1, 10**7),
    durable_s=st.integers(0, 2 * 10**9).map(float),
    save_s=st.integers(0, 10**4).map(float),
    due_s=st.none() | st.integers(0, 2 * 10**9).map(float),
    restart_s=st.integers(0, 10**4).map(float),
    preemptions=st.integers(0, 99),
    saves_on_signal=st.booleans(),
)


def test_what_a_kill_costs_is_what_the_policy_minimises() -> None:
    """100 s since durable + 202 s × 2, on 8 GPUs."""
    assert BEACON.cost_gpu_s(1_730_000_100.0) == 8 * (100 + 2 * 202)


def test_a_file_is_read_as_it_was_written_and_nothing_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "beacon.json"
    for beacon in (BEACON, replace(BEACON, durable_step=1300, due_s=None)):
        write_beacon(path, beacon)
        assert read_beacon(path) == beacon
    assert os.listdir(tmp_path) == ["beacon.json"]


def test_a_write_that_fails_leaves_the_old_beacon(tmp_path: Path) -> None:
    path = tmp_path / "beacon.json"
    write_beacon(path, BEACON)
    with pytest.raises(TypeError):
        write_beacon(path, replace(BEACON, due_s=object()))  # type: ignore[arg-type]
    assert read_beacon(path) == BEACON
    assert os.listdir(tmp_path) == ["beacon.json"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "beacon/9"}, "expected a JSON object of format beacon/1"),
        ({"job": ""}, 'job: expected a name, found ""'),
        ({"gpus": 0}, "gpus: expected a number, found 0"),
        ({"durable_s": "now"}, 'durable_s: expected a number, found "now"'),
        ({"save_s": None}, "save_s: expected a number, found null"),
        ({"due_s": True}, "due_s: expected a number, found true"),
    ],
)
def test_a_bad_beacon_is_one_line(tmp_path: Path, change: dict[str, object], said: str) -> None:
    path = tmp_path / "beacon.json"
    write_beacon(path, BEACON)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=said):
        read_beacon(path)


def test_a_text_that_is_no_beacon_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    for text in ("", "{", "[]", "3"):
        with pytest.raises(InputError, match="expected a JSON object"):
            parse_beacon(text)
    with pytest.raises(InputError, match="expected a readable beacon"):
        read_beacon(tmp_path / "none.json")


@given(beacon=beacons)
def test_slurms_comment_carries_all_but_name_and_size(beacon: Beacon) -> None:
    comment = slurm_comment(beacon)
    assert from_slurm_comment(beacon.job, beacon.gpus, comment) == beacon
    assert len(comment) < 200
    assert not set(comment) & set(" ,'\"\\\n")


@pytest.mark.parametrize("comment", ["", "hello", "ett:", "ett:step=x", "ett:step=1;durable=2"])
def test_a_comment_of_somebody_else_is_no_beacon(comment: str) -> None:
    assert from_slurm_comment("7", 8, comment) is None


def test_kueue_gets_a_low_boost_right_after_a_save_and_a_higher_one_later() -> None:
    saved = BEACON.durable_s
    assert [kueue_boost(BEACON, saved + s) for s in (0, 60, 600, 10**9)] == [6, 7, 16, 100]
    assert kueue_annotation(BEACON, saved) == {
        "metadata": {"annotations": {"kueue.x-k8s.io/priority-boost": "6"}}
    }
    assert kueue_spec(BEACON, saved) == {"spec": {"priorityBoost": 6}}


def test_volcano_gets_the_time_of_the_last_checkpoint_if_there_is_one() -> None:
    assert volcano_annotation(BEACON) == {
        "metadata": {"annotations": {"volcano.sh/last-checkpoint-time": "2024-10-27T03:33:20Z"}}
    }
    without = volcano_annotation(replace(BEACON, durable_step=-1))
    assert without == {"metadata": {"annotations": {}}}
