"""The attempts of a run: what the launcher says, what ranks know, and what is missing."""

from pathlib import Path
from typing import Any

import player as tape
import pytest
from player import UNIT_NS, Move, Player, player

from torchett.record.attempt_log import attempts_path
from torchett.runs.reader import RunReader

TWO: list[Move] = [("times", 2, [("step", 1, [("gap", 2)])])]
START: dict[str, Any] = {"event": "start", "attempt": 0, "t_ns": 0}
END: dict[str, Any] = {"event": "end", "attempt": 0, "t_ns": 10 * UNIT_NS, "outcome": "success"}
AGAIN: dict[str, Any] = {"event": "start", "attempt": 1, "t_ns": 12 * UNIT_NS}


def life(run: Path, begin: int = 1, index: int = 0, close: bool = False, **who: Any) -> Player:
    """A rank that makes two steps of 2 units from `begin` on."""
    with pytest.MonkeyPatch.context() as patch:
        played = player(run, patch, began_ns=begin * UNIT_NS, **who)
        played.clock.now_ns, played.index = begin * UNIT_NS, index
        played.play(TWO)
        if close:
            played.recorder.close({"exit_ns": played.clock()})
    return played


def units(run: Path) -> dict[str, float]:
    return {name: ns / UNIT_NS for name, ns in RunReader(run).poll().ledger().accounts.items()}


def states(run: Path) -> list[tuple[int, str, float, float]]:
    """Number, state and what it owns, in units, of every attempt."""
    tenures = RunReader(run).poll().ledger().window.tenures
    return [(t.attempt.number, t.state, t.lo_ns / UNIT_NS, t.hi_ns / UNIT_NS) for t in tenures]


def launched(run: Path, *facts: dict[str, Any], **head: Any) -> None:
    tape.launched(run, *facts, **head)


def test_a_launched_attempt(tmp_path: Path) -> None:
    """
    0 start ─ 1 ─ s s ─ 5 ┄ 10 end
    """
    life(tmp_path)
    launched(tmp_path, START, END)
    assert units(tmp_path) == {"unattributed": 1, "effective": 4, "teardown": 5}


def test_lines_said_twice_count_once(tmp_path: Path) -> None:
    life(tmp_path)
    launched(tmp_path, START, START, END, END, END)
    assert states(tmp_path) == [(0, "success", 0, 10)]
    assert RunReader(tmp_path).poll().notes == []


def test_without_its_start_an_attempt_begins_with_its_first_rank(tmp_path: Path) -> None:
    """
    (start is missing)  1 ─ s s ─ 5 ┄ 10 end
    """
    life(tmp_path, begin=3, rank=1, ranks=2)
    life(tmp_path, begin=1, rank=0, ranks=2)
    launched(tmp_path, END)
    assert states(tmp_path) == [(0, "success", 1, 10)]


def test_without_its_end_the_last_attempt_is_live(tmp_path: Path) -> None:
    life(tmp_path)
    launched(tmp_path, START)
    assert states(tmp_path) == [(0, "live", 0, 5)]


def test_without_its_end_an_earlier_attempt_vanished(tmp_path: Path) -> None:
    """
    attempt 0   0 ─ 1 ─ s s ─ 5 (last seen)
    attempt 1                        12 ─ 13 ─ s s ─ 17 ┄ live
    """
    life(tmp_path)
    life(tmp_path, begin=13, index=2, attempt=1)
    launched(tmp_path, START, AGAIN)
    assert states(tmp_path) == [(0, "vanished", 0, 5), (1, "live", 5, 17)]


def test_an_attempt_without_any_record_counts(tmp_path: Path) -> None:
    """
    attempt 0   0 ┄┄ nobody recorded ┄┄ 10 end (failed)
    attempt 1                           12 ─ 13 ─ s s ─ 17 ┄ live
    """
    life(tmp_path, begin=13, attempt=1, ranks=1)
    launched(tmp_path, START, END | {"outcome": "failed", "cause": "gpu_ecc"}, AGAIN)
    reader = RunReader(tmp_path).poll()
    assert reader.ledger().failures == {"infra": 1, "scheduler": 0, "user": 0}
    assert units(tmp_path)["unattributed"] == 10 + 1


@pytest.mark.parametrize(
    "line",
    [b"not json", b"[]", b"7", b"null", b"{}", b'{"event":"start"}', b'{"event":"end","attempt":0}',
     b'{"event":"end","attempt":0,"t_ns":1,"outcome":"maybe"}', b'{"event":"dance","attempt":0}',
     b'{"event":"start","attempt":"x","t_ns":1}', b'{"event":"start","attempt":3,"t_ns":1e999}',
     b'{"event":"start","attempt":3,"t_ns":' + b"9" * 5000 + b"}", b"[" * 100_000,
     b'{"format":"attempts/9","job":"a","anchor":{}}', b"\xff\xfe"],
)  # fmt: skip
def test_a_line_that_is_none_is_said_and_skipped(tmp_path: Path, line: bytes) -> None:
    life(tmp_path)
    launched(tmp_path, START, END)
    path = attempts_path(tmp_path)
    head, *rest = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([head, line, *rest]) + b"\n")
    reader = RunReader(tmp_path).poll()
    assert states(tmp_path) == [(0, "success", 0, 10)]
    assert reader.notes == [f"{path}:2: expected a line of attempts/1, skipped"]


def test_a_log_cut_off_at_any_byte_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """
    {"format":…}⏎ {"event":"start",…}⏎ {"event":"e✂
    """
    life(tmp_path)
    launched(tmp_path, START, END)
    path = attempts_path(tmp_path)
    data = path.read_bytes()
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        reader = RunReader(tmp_path).poll()
        assert reader.ledger().accounts["effective"] == 4 * UNIT_NS
        torn = bool(data[:cut].rpartition(b"\n")[2])
        assert any("the last line is cut off" in note for note in reader.notes) == torn


def test_a_live_jobs_now_is_the_launchers_last_sign_of_life(tmp_path: Path) -> None:
    """
    0 start ─ 1 ─ s s ─ 5 ┄┄┄ 9 beat
    """
    life(tmp_path)
    launched(tmp_path, START, beat_ns=9 * UNIT_NS)
    assert states(tmp_path) == [(0, "live", 0, 9)]
    assert units(tmp_path) == {"unattributed": 1, "effective": 4, "other_in_loop": 4}


def test_a_record_newer_than_the_beat_counts(tmp_path: Path) -> None:
    life(tmp_path)
    launched(tmp_path, START, beat_ns=2 * UNIT_NS)
    assert states(tmp_path) == [(0, "live", 0, 5)]


def test_an_open_span_of_a_live_job_lasts_until_now(tmp_path: Path) -> None:
    """
    0 start ─ 1 ─ s s ─ 5 ─ evaluation ┄┄┄ 9 beat
    """
    with pytest.MonkeyPatch.context() as patch:
        played = player(tmp_path, patch)
        played.clock.now_ns = UNIT_NS
        played.play([*TWO, ("open", 0, "evaluation", False)])
    launched(tmp_path, START, beat_ns=9 * UNIT_NS)
    assert units(tmp_path) == {"unattributed": 1, "effective": 4, "evaluation": 4}


def test_restarts_by_the_agent_are_attempts_of_their_own(tmp_path: Path) -> None:
    """
    launcher    0 start ──────────────────────────────────────── 20 end
    agent         └ 1 ─ s s ─ 5 ✗     └ 11 ─ s s ─ 15
    attempts    0, vanished at 5       1, ended as the launcher says
    """
    life(tmp_path)
    life(tmp_path, begin=11, index=2, restart=1)
    launched(tmp_path, START, END | {"t_ns": 20 * UNIT_NS})
    assert states(tmp_path) == [(0, "vanished", 0, 5), (1, "success", 5, 20)]
    ledger = RunReader(tmp_path).poll().ledger()
    assert [ns / UNIT_NS for ns in ledger.time_to_recover_ns] == [11 - 5]
    assert ledger.number_of_failures == 1


def test_a_first_life_without_a_record_is_an_attempt_too(tmp_path: Path) -> None:
    """
    launcher    0 start ──────────────────────────────────────── 20 end
    agent         └ died before it could record   └ restart 1: 11 ─ s s ─ 15

    The window begins with the launcher, and the death is a failure.
    """
    life(tmp_path, begin=11, restart=1)
    launched(tmp_path, START, END | {"t_ns": 20 * UNIT_NS})
    reader = RunReader(tmp_path).poll()
    assert reader.ledger().window.start_ns == 0
    assert len(reader.job.attempts) == 2
    assert reader.ledger().number_of_failures == 1


def test_without_a_launcher_ranks_say_when_it_was_over(tmp_path: Path) -> None:
    """
    rank 0   1 ─ s s ─ 5 exit
    rank 1       3 ─ s s ─ 7 exit
    """
    life(tmp_path, begin=1, rank=0, ranks=2, close=True)
    life(tmp_path, begin=3, rank=1, ranks=2, close=True)
    assert states(tmp_path) == [(0, "success", 1, 7)]


def test_without_a_launcher_a_rank_that_has_not_said_so_is_live(tmp_path: Path) -> None:
    life(tmp_path, begin=1, rank=0, ranks=2, close=True)
    assert states(tmp_path) == [(0, "live", 1, 5)]
    life(tmp_path, begin=3, rank=1, ranks=2)
    assert states(tmp_path) == [(0, "live", 1, 7)]


def test_attempts_whose_times_cannot_be_are_moved_and_said(tmp_path: Path) -> None:
    """
    attempt 0   0 ────────── 10 end
    attempt 1        6 start                      says its clock
    """
    life(tmp_path)
    launched(tmp_path, START, END | {"outcome": "failed"}, AGAIN | {"t_ns": 6 * UNIT_NS})
    reader = RunReader(tmp_path).poll()
    assert states(tmp_path) == [(0, "failed", 0, 10), (1, "live", 10, 10)]
    (note,) = reader.notes
    assert "attempt 1" in note
    assert "moved to fit" in note


def test_the_job_is_named_by_its_launcher_else_by_its_folder(tmp_path: Path) -> None:
    life(tmp_path / "folder")
    assert RunReader(tmp_path / "folder").poll().job.name == "folder"
    launched(tmp_path / "folder", START)
    assert RunReader(tmp_path / "folder").poll().job.name == "folder"


def test_the_log_says_which_attempts_a_new_launcher_began(tmp_path: Path) -> None:
    """
    launcher A: attempt 0 ─ its agent restarts the ranks ─ attempt 1      launcher B: attempt 2
    """
    again = {"event": "start", "attempt": 0, "restart": 1, "t_ns": 4 * UNIT_NS}
    launched(tmp_path, START, START, again, END, AGAIN)
    launched(tmp_path, {"event": "start", "attempt": 2, "t_ns": 20 * UNIT_NS})
    reader = RunReader(tmp_path).poll()
    assert [attempt.number for attempt in reader.job.attempts] == [0, 1, 2, 3]
    assert reader.new_launchers == {0: True, 1: False, 2: False, 3: True}


def test_without_a_launcher_only_a_restart_by_an_agent_is_known(tmp_path: Path) -> None:
    life(tmp_path)
    life(tmp_path, begin=20, restart=1)
    assert RunReader(tmp_path).poll().new_launchers == {1: False}
