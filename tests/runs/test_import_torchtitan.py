"""torchtitan's structured logs become a history: spans by nesting, one attempt a set of files."""

import json
from typing import Any

import pytest

from torchett.ledger import settle
from torchett.model.errors import InputError
from torchett.runs.importers import torchtitan
from torchett.runs.importers.builder import UserHints


class Writer:
    """Writes records as the trainer does; times are seconds."""

    def __init__(self, rank: int = 0) -> None:
        self.lines: list[str] = []
        self.rank = rank
        self.step: int | None = None
        self.tags: list[str] = []

    def record(self, kind: str, t: float, log_type: str = "event") -> None:
        fact: dict[str, Any] = {
            "rank": self.rank, "global_rank": self.rank, "source": "training",
            "time_us": int((1_700_000_000 + t) * 1e6), "log_type": log_type, "log_type_name": kind,
        }  # fmt: skip
        if self.step is not None:
            fact["step"] = self.step
        if self.tags:
            fact["step_tags"] = self.tags
        self.lines.append(json.dumps(fact) + "\n")

    def span(self, kind: str, t0: float, t1: float) -> None:
        self.record(f"{kind}_start", t0)
        self.record(f"{kind}_end", t1)


def job(rank: int, at: float, first: int, count: int, teardown: bool = True) -> list[str]:
    """A process: init, a restore, then steps of 2 s (0.5 s of it fetching), a save every other."""
    w = Writer(rank)
    w.record("structured_logger_started", at, "instant")
    w.record("Trainer.build_start", at)
    w.span("torch_distributed_init", at + 0.25, at + 1)
    w.record("Trainer.build_end", at + 2)
    w.span("checkpoint_load", at + 2, at + 3)
    t = at + 3
    for step in range(first, first + count):
        w.step, w.tags = step, []
        w.record("step_start", t)
        w.span("fetching_batch", t, t + 0.5)
        w.span("fwd_bwd", t + 0.5, t + 1)
        w.span("optim", t + 1, t + 1.25)
        if step % 2 == 0:
            w.record("checkpoint_save_start", t + 1.5)
            w.tags = ["checkpoint_save"]
            w.record("checkpoint_save_end", t + 2)
        else:
            w.span("checkpoint_save", t + 1.5, t + 1.5)
        w.record("step_end", t + 2)
        t += 2
    if teardown:
        w.span("torch_distributed_teardown", t, t + 1)
    return w.lines


def read(files: dict[str, list[str]]) -> dict[str, Any]:
    return settle(torchtitan.parse(files, "titan", UserHints())).to_json()


def test_every_second_of_a_rank_has_its_account() -> None:
    found = read({"r0": job(0, 0, 1, 4), "r1": job(1, 0, 1, 4)})
    assert found["ranks"] == 2
    assert {k: v / 2 for k, v in found["accounts"].items()} == pytest.approx(
        {
            "train_module_creation": 1.25,
            "process_group_init": 0.75,
            "checkpoint_restore": 1,
            "get_first_batch_data": 0.5,
            "data_wait": 1.5,
            "checkpoint_blocked": 1,
            "effective": 5,
            "teardown": 1,
        }
    )
    assert (found["last_step"], found["failures"]["infra"]) == (4, 0)


def test_a_second_file_of_a_rank_is_the_next_attempt() -> None:
    found = read({"a": job(0, 0, 1, 5, teardown=False), "b": job(0, 100, 3, 4)})
    assert found["attempts"] == 2
    assert found["last_step"] == 6
    assert found["accounts"]["unsaved"] == pytest.approx(1.5 + 1 + 1.5)


def test_a_step_that_raised_or_found_no_data_is_none() -> None:
    w = Writer()
    w.record("structured_logger_started", 0, "instant")
    for step in (1, 2):
        w.step = step
        w.record("step_start", step)
        w.span("optim", step + 0.25, step + 0.5)
        w.record("step_end", step + 1)
    w.step = 3
    w.record("step_start", 3)
    w.record("step_end", 3.5)
    assert read({"a": w.lines})["last_step"] == 2
    w.step = 4
    w.record("step_start", 4)
    w.record("step_error", 4.5)
    w.record("step_end", 4.5)
    found = read({"a": w.lines})
    assert found["failures"]["infra"] == 1
    assert found["accounts"]["detect"] == pytest.approx(1.5)


def test_a_rank_that_was_killed_leaves_half_a_line() -> None:
    whole = job(0, 0, 1, 4, teardown=False)
    history = torchtitan.parse({"a": [*whole, whole[0][:30]]}, "titan", UserHints())
    assert any("cut off" in note for note in history.notes)
    assert settle(history).to_json()["last_step"] == 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{\n", "f:2: expected one whole JSON object"),
        ("7\n", "f:2: expected a JSON object"),
        ('{"log_type_name": "x"}\n', "f:2: expected time_us to be a whole number ≥ 0, found noth"),
        ('{"time_us": 3, "log_type_name": 3}\n', "f:2: expected log_type_name to be a text"),
        ('{"time_us": -3, "log_type_name": "x"}\n', "f:2: expected time_us to be a whole number"),
    ],
)
def test_what_is_no_record_is_refused(line: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read({"f": [*job(0, 0, 1, 1)[:1], line, "\n"]})
    assert str(caught.value).startswith(said)


def test_files_without_a_record_are_refused() -> None:
    with pytest.raises(InputError, match="f:1: expected torchtitan's records, found none"):
        read({"f": ["\n"]})
