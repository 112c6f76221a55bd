"""One clock: records of a host by its monotonic time, hosts by what their launchers measured."""

from pathlib import Path
from typing import Any

import pytest
from player import UNIT_NS, launched, player

from torchett.record.clock import Anchor
from torchett.runs.reader import RunReader

HOUR_NS = 3600 * 10**9
TODAY = 1_790_000_000 * 10**9


def clock(host: str, *, booted_ns: int, stepped_ns: int = 0) -> Anchor:
    """The anchor of a process on `host`, whose wall clock was stepped before it was taken."""
    return Anchor(host=host, clock=host, wall_ns=TODAY + booted_ns + stepped_ns, mono_ns=0)


def rank(run: Path, anchor: Anchor, begin: int, index: int = 0, **who: Any) -> None:
    """A rank that makes two steps of 2 units from `begin` on (on its monotonic clock)."""
    with pytest.MonkeyPatch.context() as patch:
        played = player(run, patch, anchor=anchor, began_ns=begin * UNIT_NS, **who)
        played.clock.now_ns, played.index = begin * UNIT_NS, index
        played.play([("times", 2, [("step", 1, [("gap", 2)])])])
        played.recorder.close({"exit_ns": played.clock()})


def units(reader: RunReader) -> dict[str, float]:
    return {name: ns / UNIT_NS for name, ns in reader.ledger().accounts.items()}


@pytest.mark.parametrize("jump_ns", [HOUR_NS, -HOUR_NS, 200_000_000])
def test_a_wall_clock_that_jumped_does_not_move_records_of_one_host(
    tmp_path: Path, jump_ns: int
) -> None:
    """
    launcher   0 start ─────────────────────────── 12 end
    rank 0       1 ─ s s ─ 5
    wall clock               ~~ stepped by an hour ~~
    rank 1                     7 ─ s s ─ 11
    """
    here = clock("a", booted_ns=0)
    stepped = clock("a", booted_ns=0, stepped_ns=jump_ns)
    launched(
        tmp_path,
        {"event": "start", "attempt": 0, "t_ns": 0, "ranks": 2},
        {"event": "end", "attempt": 0, "t_ns": 12 * UNIT_NS, "outcome": "success"},
        anchor=here,
    )
    rank(tmp_path, here, 1, rank=0, ranks=2)
    rank(tmp_path, stepped, 7, rank=1, ranks=2)
    reader = RunReader(tmp_path).poll()
    assert units(reader) == {"unattributed": 1 + 7, "effective": 8, "teardown": 7 + 1}
    assert reader.ledger().window.start_ns == TODAY
    (note,) = reader.notes
    assert "rank-1.ett: the wall clock had jumped by" in note
    assert f"{jump_ns / 1e9:+.3f} s" in note


def test_a_jump_too_small_to_matter_is_not_said(tmp_path: Path) -> None:
    """A clock that is being slewed differs by milliseconds from one process to the next."""
    rank(tmp_path, clock("a", booted_ns=0), 1, rank=0, ranks=2)
    rank(tmp_path, clock("a", booted_ns=0, stepped_ns=3_000_000), 1, rank=1, ranks=2)
    reader = RunReader(tmp_path).poll()
    assert reader.notes == []
    assert units(reader) == {"effective": 8}


def test_the_launchers_anchor_places_its_host(tmp_path: Path) -> None:
    """Even where a rank's clock reads earlier: the launcher was there first."""
    launched(
        tmp_path,
        {"event": "start", "attempt": 0, "t_ns": 0},
        {"event": "end", "attempt": 0, "t_ns": 6 * UNIT_NS, "outcome": "success"},
        anchor=clock("a", booted_ns=0),
    )
    rank(tmp_path, clock("a", booted_ns=0, stepped_ns=-HOUR_NS), 1)
    reader = RunReader(tmp_path).poll()
    assert units(reader) == {"unattributed": 1, "effective": 4, "teardown": 1}


def test_hosts_are_placed_by_their_own_wall_clocks(tmp_path: Path) -> None:
    """
    host a, booted at 0    1 ─ s s ─ 5
    host b, booted at 100  (mono 1 − 100) the same wall time
    """
    rank(tmp_path, clock("a", booted_ns=0), 101, rank=0, ranks=2)
    rank(tmp_path, clock("b", booted_ns=100 * UNIT_NS), 1, rank=1, ranks=2)
    reader = RunReader(tmp_path).poll()
    assert units(reader) == {"effective": 8}
    assert reader.notes == []


@pytest.mark.parametrize("offset_ns", [5 * UNIT_NS, -5 * UNIT_NS])
def test_a_measured_offset_is_corrected_and_said(tmp_path: Path, offset_ns: int) -> None:
    """
    host a   0 start ─ 1 ─ s s ─ 5 end       as it was
    host b   the same, but its wall clock is 50 ms off; its launcher measured that
    """
    a = clock("a", booted_ns=0)
    b = clock("b", booted_ns=0, stepped_ns=-offset_ns)
    launched(
        tmp_path,
        {"event": "start", "attempt": 0, "t_ns": UNIT_NS, "ranks": 2},
        {"event": "end", "attempt": 0, "t_ns": 5 * UNIT_NS, "outcome": "success"},
        anchor=a,
    )
    rank(tmp_path, a, 1, rank=0, ranks=2)
    rank(tmp_path, b, 1, rank=1, ranks=2)
    before = RunReader(tmp_path).poll()
    assert units(before)["effective"] < 8
    assert before.notes == []
    launched(
        tmp_path,
        {"event": "clock", "offset_ns": offset_ns, "error_ns": 40_000},
        anchor=b,
        node=1,
    )
    reader = RunReader(tmp_path).poll()
    assert units(reader) == {"effective": 8}
    (note,) = reader.notes
    assert note == (
        f"clock of b corrected by {offset_ns / 1e6:+.3f} ms (± 0.040 ms), as its launcher measured"
    )


def test_an_offset_learned_later_moves_what_was_read_before(tmp_path: Path) -> None:
    """A reader that polls comes to the same ledger as one that reads once."""
    a, b = clock("a", booted_ns=0), clock("b", booted_ns=0, stepped_ns=HOUR_NS)
    launched(tmp_path, {"event": "start", "attempt": 0, "t_ns": 0, "ranks": 2}, anchor=a)
    rank(tmp_path, a, 1, rank=0, ranks=2)
    rank(tmp_path, b, 1, rank=1, ranks=2)
    reader = RunReader(tmp_path).poll()
    assert reader.ledger().window_ns > HOUR_NS
    launched(tmp_path, {"event": "clock", "offset_ns": -HOUR_NS, "error_ns": 1}, anchor=b, node=1)
    assert reader.poll().ledger().accounts == RunReader(tmp_path).poll().ledger().accounts
    assert reader.ledger().window_ns == 5 * UNIT_NS


def test_a_job_resubmitted_after_a_reboot_goes_on_by_wall_time(tmp_path: Path) -> None:
    """
    boot 1   0 start ─ 1 ─ s s ─ 5 ─ 6 end (failed)
    boot 2                                 monotonic time begins anew: 0 = 100 units later
    """
    first, second = clock("a", booted_ns=0), clock("a/2", booted_ns=100 * UNIT_NS)
    launched(
        tmp_path,
        {"event": "start", "attempt": 0, "t_ns": 0},
        {"event": "end", "attempt": 0, "t_ns": 6 * UNIT_NS, "outcome": "failed"},
        anchor=first,
    )
    rank(tmp_path, first, 1)
    launched(
        tmp_path,
        {"event": "start", "attempt": 1, "t_ns": 0},
        {"event": "end", "attempt": 1, "t_ns": 6 * UNIT_NS, "outcome": "success"},
        anchor=second,
    )
    rank(tmp_path, second, 1, index=2, attempt=1)
    reader = RunReader(tmp_path).poll()
    assert reader.notes == []
    assert units(reader)["restart_gap"] == 100 - 6
    assert [ns / UNIT_NS for ns in reader.ledger().time_to_recover_ns] == [101 - 5]
