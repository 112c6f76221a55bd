"""A dead rank's ring sealed into its log: the same account, and no ring left behind."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from player import (
    HERE,
    UNIT_NS,
    Move,
    Player,
    facts,
    flight,
    killed,
    launched,
    player,
    ring_of,
    steps_in,
)

from torchett.record.clock import Anchor
from torchett.record.flight.seal import seal, seal_attempt
from torchett.record.flight.writer import FlightWriter
from torchett.runs.reader import RunReader

STEP: Move = ("step", 1, [("gap", 2)])
INSIDE: Move = ("step", 1, [("gap", 1), ("span", "recompile", [("gap", 2)]), ("gap", 1)])
END = 1_000_000 * UNIT_NS


def die(run: Path, moves: list[Move], monkeypatch: pytest.MonkeyPatch) -> Player:
    """A rank that played the moves and was killed at once, in an attempt that ends at END."""
    played = player(run, monkeypatch, launched=True)
    played.play(moves)
    launched(
        run,
        {"event": "start", "attempt": 0, "t_ns": 0},
        {"event": "end", "attempt": 0, "t_ns": END, "outcome": "failed"},
    )
    killed()
    return played


@pytest.mark.parametrize(
    "moves",
    [
        pytest.param([], id="nothing recorded"),
        pytest.param([STEP], id="one step"),
        pytest.param([("times", 70, [STEP])], id="more than stays in detail"),
        pytest.param([("times", 511, [STEP])], id="a ring but one"),
        pytest.param([("times", 512, [STEP])], id="a full ring"),
        pytest.param([("times", 1000, [INSIDE, ("gap", 1)])], id="spans inside steps"),
        pytest.param([("times", 300, [STEP]), ("saved", 10), STEP], id="a checkpoint"),
        pytest.param([STEP, ("open", 0, "checkpoint_blocked", False)], id="an open span"),
        pytest.param([("open", 0, "publish", True), STEP, STEP], id="an open background span"),
        pytest.param(
            [("times", 100, [STEP]), ("open", 0, "x-mine", False), ("times", 100, [STEP])],
            id="an open span across steps",
        ),
        pytest.param(
            [
                ("times", 600, [("span", "pre_train", [("gap", 1)])]),
                ("step", 1, [("span", "pt2_compile", [("gap", 8)]), ("gap", 1)]),
                ("times", 100, [("gap", 1), STEP]),
            ],
            id="a first step after a long start",
        ),
        pytest.param(
            [("span", "imports", [("gap", 3)])] * 3
            + [("gap", 2), ("step", 1, [("gap", 1), ("span", "pt2_compile", [("gap", 5)])])]
            + [("times", 100, [STEP])],
            id="a compile inside the first step",
        ),
    ],
)
def test_a_sealed_record_settles_to_the_same_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: list[Move]
) -> None:
    """
    log │ chunks │ + ring │ e e e e │  →  log │ chunks │ last chunk │
    """
    run = tmp_path / "job"
    played = die(run, moves, monkeypatch)
    before = RunReader(run).poll()
    path = next(run.glob("*/*.ett"))
    ring = ring_of(path)
    assert ring.exists()
    seal(path, HERE, END)
    after = RunReader(run).poll()
    assert not ring.exists()
    assert after.notes == before.notes == []
    assert facts(after.ledger()) == facts(before.ledger())
    assert after.history().checkpoints == before.history().checkpoints
    assert steps_in(after.history().rows) == steps_in(before.history().rows)
    assert steps_in(before.history().rows) == sum(getattr(r, "count", 0) for r in played.rows)


def test_the_newest_entries_stay_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a record that was closed: what happened last is what one wants to see."""
    die(tmp_path / "job", [("times", 500, [STEP])], monkeypatch)
    seal(next((tmp_path / "job").glob("*/*.ett")), HERE, END)
    rows = RunReader(tmp_path / "job").poll().history().rows
    assert len(rows) < 100
    assert rows.count[-64:].tolist() == [1] * 64


def test_sealing_twice_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    die(tmp_path / "job", [("times", 5, [STEP])], monkeypatch)
    path = next((tmp_path / "job").glob("*/*.ett"))
    seal(path, HERE, END)
    once = path.read_bytes()
    seal(path, HERE, END)
    assert path.read_bytes() == once


def test_a_rank_of_another_host_is_not_ours_to_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock is another one: it may be alive, and END means nothing on it."""
    die(tmp_path / "job", [("times", 5, [STEP])], monkeypatch)
    path = next((tmp_path / "job").glob("*/*.ett"))
    before = path.read_bytes()
    seal(path, Anchor(host="there", clock="there", wall_ns=0, mono_ns=0), END)
    assert path.read_bytes() == before
    assert ring_of(path).exists()


@pytest.mark.parametrize("keep", [0, 1, 100, 4096, 28_671])
def test_a_damaged_ring_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    die(tmp_path / "job", [("times", 5, [STEP])], monkeypatch)
    path = next((tmp_path / "job").glob("*/*.ett"))
    live = ring_of(path)
    live.write_bytes(live.read_bytes()[:keep])
    before = path.read_bytes()
    seal(path, HERE, END)
    assert path.read_bytes() == before
    assert live.exists()


def test_a_ring_whose_log_is_damaged_is_moved_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far the log reaches is not known then; a reader takes both as they are."""
    die(tmp_path / "job", [("times", 600, [STEP])], monkeypatch)
    path = next((tmp_path / "job").glob("*/*.ett"))
    path.write_bytes(path.read_bytes()[:-1])
    before, ring = path.read_bytes(), ring_of(path)
    steps = steps_in(RunReader(tmp_path / "job").poll().history().rows)
    seal(path, HERE, END)
    assert path.read_bytes() == before
    assert not ring.exists()
    assert path.with_suffix(".live").exists()
    assert steps_in(RunReader(tmp_path / "job").poll().history().rows) == steps == 600


def test_what_cannot_be_sealed_is_not_an_error(tmp_path: Path) -> None:
    """No file, no ring, no record: nothing happens."""
    seal(tmp_path / "none.ett", HERE, END)
    writer = flight(tmp_path / "job")
    killed()
    writer.path.write_bytes(b"not a record\n")
    seal(writer.path, HERE, END)
    assert writer.path.read_bytes() == b"not a record\n"


def test_a_span_that_had_just_ended_is_not_open(tmp_path: Path, monkeypatch: Any) -> None:
    """
    evaluation  ├──────┤✗        killed between the entry and its leave from the table of open ones
    """
    played = player(tmp_path / "job", monkeypatch, launched=True)
    monkeypatch.setattr(FlightWriter, "close_span", lambda self, slot: None)
    played.play([("span", "evaluation", [("gap", 10)]), ("gap", 90)])
    launched(
        tmp_path / "job",
        {"event": "start", "attempt": 0, "t_ns": 0},
        {"event": "end", "attempt": 0, "t_ns": played.clock(), "outcome": "failed"},
    )
    before = RunReader(tmp_path / "job").poll().ledger().accounts
    killed()
    seal(next((tmp_path / "job").glob("*/*.ett")), HERE, played.clock())
    after = RunReader(tmp_path / "job").poll().ledger().accounts
    assert before["evaluation"] == after["evaluation"] == 100_000_000


def test_a_ring_of_a_run_that_was_deleted_is_not_the_new_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    die(run, [STEP], monkeypatch)
    (log,) = run.glob("attempt-0/*.ett")
    ring = ring_of(log)
    assert ring.exists()
    shutil.rmtree(run)
    launched(run, {"event": "start", "attempt": 0, "t_ns": END})
    seal_attempt(run, 0, 2 * END)
    assert not ring.exists()
    assert not list(run.glob("attempt-*"))
