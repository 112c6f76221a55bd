"""Two processes that say they are the same rank: at once, one gives way; in turn, both count."""

from pathlib import Path
from typing import Any

import pytest
from player import HERE, UNIT_NS, flight, killed, launched, player, steps_in

from torchett.record.flight.seal import seal
from torchett.runs.reader import RunReader


def rank(run: Path, begin: int, steps: int, *, close: bool = True, **who: Any) -> None:
    """A process that is rank 0 and makes steps of 1 unit from `begin` on."""
    with pytest.MonkeyPatch.context() as patch:
        played = player(run, patch, began_ns=begin * UNIT_NS, **who)
        played.clock.now_ns, played.index = begin * UNIT_NS, begin
        played.play([("times", steps, [("step", 1, [("gap", 1)])])])
        if close:
            played.recorder.close({"exit_ns": played.clock()})


@pytest.mark.parametrize("close", [True, False])
def test_of_two_at_once_the_one_with_more_on_record_counts(tmp_path: Path, close: bool) -> None:
    """
    pid 1   0 s s s s s s s s 8
    pid 2       2 s s s 5            left out, and said
    """
    rank(tmp_path, 0, 8, close=close, pid=11)
    rank(tmp_path, 2, 3, close=close, pid=22)
    reader = RunReader(tmp_path).poll()
    assert steps_in(reader.history().rows) == 8
    (note,) = reader.notes
    left_out = tmp_path / "attempt-0" / "rank-0~1.ett"
    assert note == (
        f"{left_out}: two processes at once claimed rank 0 of attempt 0"
        " (pids 11 and 22); this record is left out"
    )


def test_whoever_came_first_does_not_matter(tmp_path: Path) -> None:
    """
    pid 1       2 s s s 5            left out
    pid 2   0 s s s s s s s s 8
    """
    rank(tmp_path, 2, 3)
    rank(tmp_path, 0, 8)
    reader = RunReader(tmp_path).poll()
    assert steps_in(reader.history().rows) == 8
    assert len(reader.notes) == 1


def test_of_two_in_turn_both_count(tmp_path: Path) -> None:
    """
    pid 1   0 s s s s 4
    pid 2               5 s s s 8     a wrapper that runs the script twice
    """
    rank(tmp_path, 0, 4)
    rank(tmp_path, 5, 3)
    reader = RunReader(tmp_path).poll()
    assert steps_in(reader.history().rows) == 7
    assert reader.notes == []


@pytest.mark.parametrize("sealed", [True, False])
def test_what_one_was_killed_in_lasts_until_the_next_begins(tmp_path: Path, sealed: bool) -> None:
    """
    pid 1   0 s s 2── evaluation ✗
    pid 2                          5 s s s 8     9 the attempt ends
    """
    launched(
        tmp_path,
        {"event": "start", "attempt": 0, "t_ns": 0},
        {"event": "end", "attempt": 0, "t_ns": 9 * UNIT_NS, "outcome": "success"},
    )
    with pytest.MonkeyPatch.context() as patch:
        first = player(tmp_path, patch, began_ns=0, launched=True)
        first.play([("times", 2, [("step", 1, [("gap", 1)])]), ("open", 0, "evaluation", False)])
    rank(tmp_path, 5, 3)
    killed()
    if sealed:
        seal(tmp_path / "attempt-0" / "rank-0.ett", HERE, 9 * UNIT_NS)
    reader = RunReader(tmp_path).poll()
    assert reader.notes == []
    found = {name: ns // UNIT_NS for name, ns in reader.ledger().accounts.items()}
    assert found == {"effective": 5, "evaluation": 3, "teardown": 1}


def test_one_that_left_before_both_others_met_counts(tmp_path: Path) -> None:
    """
    pid 1   0 s s s 3
    pid 2              4 s s s s s s 10
    pid 3                 5 s s 7           left out
    """
    rank(tmp_path, 0, 3)
    rank(tmp_path, 4, 6)
    rank(tmp_path, 5, 2)
    reader = RunReader(tmp_path).poll()
    assert steps_in(reader.history().rows) == 9
    assert len(reader.notes) == 1


def test_the_same_rank_of_another_attempt_or_restart_is_no_rival(tmp_path: Path) -> None:
    rank(tmp_path, 0, 3)
    rank(tmp_path, 1, 3, restart=1)
    rank(tmp_path, 2, 3, attempt=1)
    reader = RunReader(tmp_path).poll()
    assert not any("claimed" in note for note in reader.notes)
    assert len(reader.job.attempts) == 3


def test_a_rival_that_appears_later_is_left_out_later(tmp_path: Path) -> None:
    """A reader that polls comes to the same ledger as one that reads once."""
    rank(tmp_path, 2, 3)
    reader = RunReader(tmp_path).poll()
    assert steps_in(reader.history().rows) == 3
    rank(tmp_path, 0, 8)
    reader.poll()
    fresh = RunReader(tmp_path).poll()
    assert reader.ledger().accounts == fresh.ledger().accounts
    assert steps_in(reader.history().rows) == 8


def test_every_process_writes_a_file_of_its_own(tmp_path: Path) -> None:
    """No process ever writes into another's record."""
    names = [flight(tmp_path).path.name for _ in range(3)]
    assert names == ["rank-0.ett", "rank-0~1.ett", "rank-0~2.ett"]
