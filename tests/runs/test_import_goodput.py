"""Log entries of ml-goodput-measurement become a history that gets its known cases right."""

import json
from typing import Any

import pytest

from torchett.ledger import settle
from torchett.model.errors import InputError
from torchett.runs.importers import goodput
from torchett.runs.importers.builder import UserHints


def entries(*facts: dict[str, Any]) -> list[str]:
    return [json.dumps({"job_name": "a"} | fact) + "\n" for fact in facts]


def steps(first: int, count: int, at: float, each: float = 1.0) -> list[dict[str, Any]]:
    return [{"step_count": first + i, "step_start_time": at + i * each} for i in range(count)]


def read(lines: list[str], **hints: Any) -> dict[str, Any]:
    return settle(goodput.parse(lines, "g.jsonl", "a", UserHints(**hints))).to_json()


def test_phases_and_steps_of_one_attempt() -> None:
    found = read(
        entries(
            {"job_start_time": 0.0},
            {"tpu_init_start_time": 1.0},
            {"tpu_init_end_time": 3.0},
            {"training_prep_start_time": 3.0},
            {"training_prep_end_time": 6.0},
            {"data_loading_start_time": 6.0},
            {"data_loading_end_time": 7.0},
            *steps(0, 11, 8.0),
            {"custom_badput_event_type": "eval_step", "custom_badput_event_start_time": 10.25},
            {"custom_badput_event_type": "eval_step", "custom_badput_event_end_time": 10.75},
            {"custom_badput_event_type": "SDC scan", "custom_badput_event_start_time": 12.0},
            {"custom_badput_event_type": "SDC scan", "custom_badput_event_end_time": 12.25},
            {"job_end_time": 20.0},
        )
    )
    assert found["accounts"] == {
        "effective": 9.25, "device_init": 2.0, "pre_train": 3.0, "get_first_batch_data": 1.0,
        "evaluation": 0.5, "x-SDC_scan": 0.25, "unattributed": 2.0, "teardown": 2.0,
    }  # fmt: skip
    assert found["last_step"] == 10


def test_a_restart_that_loses_no_step_is_still_a_restart() -> None:
    first = [{"job_start_time": 0.0}, *steps(0, 100, 2.0)]
    second = [{"job_start_time": 700.0}, *steps(99, 102, 702.0), {"job_end_time": 803.0}]
    found = read(entries(*first, *second))
    assert found["attempts"] == 2
    assert found["failures"]["infra"] == 1
    assert found["accounts"]["effective"] == pytest.approx(200)
    assert found["accounts"]["restart_gap"] == pytest.approx(600, abs=2)


def test_attempts_that_die_before_a_step_count() -> None:
    starts = [{"job_start_time": t} for t in (0.0, 60.0, 120.0, 180.0)]
    found = read(entries(*starts, *steps(0, 5, 190.0), {"job_end_time": 195.0}))
    assert found["attempts"] == 4
    assert found["failures"]["infra"] == 3


def test_two_processes_that_record_are_one_attempt() -> None:
    both = [
        fact | {k: v + 0.01 for k, v in fact.items() if k.endswith("_time")}
        for fact in [{"job_start_time": 0.0}, *steps(0, 10, 2.0)]
    ]
    found = read(entries({"job_start_time": 0.0}, *steps(0, 10, 2.0), *both))
    assert found["attempts"] == 1
    assert found["failures"] == {"infra": 0, "scheduler": 0, "user": 0}
    assert found["accounts"]["effective"] == pytest.approx(9, abs=0.1)


def test_every_tenth_step_recorded_counts_for_all_ten() -> None:
    tenth = [{"step_count": i, "step_start_time": 10.0 + i} for i in range(0, 1001, 10)]
    found = read(entries({"job_start_time": 0.0}, *tenth, {"job_end_time": 1010.0}))
    assert found["ett_percent"] == pytest.approx(100 * 1000 / 1010)


def test_a_compile_in_the_first_step_is_not_training() -> None:
    slow = [{"step_count": 0, "step_start_time": 2.0}, *steps(1, 50, 302.0)]
    found = read(entries({"job_start_time": 0.0}, *slow, {"job_end_time": 351.0}))
    assert found["accounts"]["effective"] == pytest.approx(50)


def test_an_export_of_cloud_logging_is_read_newest_first() -> None:
    plain = entries({"job_start_time": 0.0}, *steps(0, 5, 1.0), {"job_end_time": 5.0})
    export = [{"insertId": "x", "jsonPayload": json.loads(line)} for line in reversed(plain)]
    lines = json.dumps(export, indent=1).splitlines(keepends=True)
    assert read(lines) == read(plain)


def test_checkpoints_of_orbax_block() -> None:
    save = {
        "event_type": "save",
        "step": "3",
        "checkpoint_manager_blocking_start_time": 4.25,
        "checkpoint_manager_blocking_duration_secs": 0.5,
    }
    found = read(entries({"job_start_time": 0.0}, *steps(0, 9, 1.0), save))
    assert found["accounts"]["checkpoint_blocked"] == 0.5


def test_the_recorder_of_the_package_itself_is_understood() -> None:
    package = pytest.importorskip("ml_goodput_measurement.src.goodput")
    written: list[str] = []

    class Sink:
        def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
            written.append(json.dumps(entry) + "\n")

    recorder = package.GoodputRecorder("a", "log", True, Sink())
    recorder.record_job_start_time()
    for step in range(4):
        recorder.record_step_start_time(step)
    recorder.record_job_end_time()
    found = read(written)
    assert (found["last_step"], found["attempts"]) == (3, 1)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "g.jsonl:1: expected log entries of ml-goodput-measurement, found none"),
        (['{"job_name": "a"\n'], "g.jsonl:1: expected one whole JSON object"),
        (["[1]\n"], "g.jsonl:1: expected a JSON object per entry"),
        (["[{]\n"], "g.jsonl:1: expected a whole JSON array"),
        (entries({"step_start_time": 1.0}), "g.jsonl:1: expected step_count beside"),
        (entries({"job_start_time": "soon"}), "g.jsonl:1: expected job_start_time to be a finite"),
        (entries({"job_end_time": float("inf")}), "g.jsonl:1: expected job_end_time to be a fin"),
        (
            entries({"job_start_time": 0.0}, {"job_start_time": 1e20}),
            "g.jsonl: expected times less than 146 years apart",
        ),
        (
            entries({"step_start_time": 1.0, "step_count": 1.5}),
            "g.jsonl:1: expected step_count to be a whole number",
        ),
        (
            [*entries({"job_start_time": 1.0}), '{"job_name": "b", "job_start_time": 2}\n'],
            "g.jsonl:2: expected entries of one job, found a and b",
        ),
    ],
)
def test_what_is_no_entry_is_refused(lines: list[str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(lines)
    assert str(caught.value).startswith(said)
