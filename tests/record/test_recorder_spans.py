"""Spans as a trainer tells them: names, nesting, threads, and what is still open."""

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from player import UNIT_NS, Player, launched, player

from torchett.model.accounts import INDEX
from torchett.record.flight.format import (
    FRAME,
    FRAMES,
    OPEN_SLOTS,
    SLOTS,
    SPAN,
    STEP,
    Chunk,
    chunks,
)
from torchett.runs.reader import RunReader


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Player:
    return player(tmp_path / "job", monkeypatch)


def spans(played: Player) -> list[tuple[str, float]]:
    """Account and length in units of every span on record."""
    history = RunReader(played.run).poll().history()
    rows = history.rows.take(~history.rows.is_step)
    names = [history.accounts.names[number] for number in rows.account.tolist()]
    return list(zip(names, ((rows.t1_ns - rows.t0_ns) / UNIT_NS).tolist(), strict=True))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_spans_nest(played: Player) -> None:
    """
    pre_train   ├───────────┤
    imports        ├────┤
    """
    played.play([("span", "pre_train", [("gap", 1), ("span", "imports", [("gap", 2)])])])
    assert spans(played) == [("imports", 2), ("pre_train", 3)]


def test_a_span_that_raises_is_a_span_all_the_same(played: Player) -> None:
    with pytest.raises(AttributeError), played.recorder.span("device_init"):
        played.play([("gap", 4), ("no_such_move",)])
    assert spans(played) == [("device_init", 4)]


def test_an_unknown_account_becomes_ones_own_with_one_warning(
    played: Player, caplog: pytest.LogCaptureFixture
) -> None:
    """
    with ett.stage("Load tokenizer!") → x-Load_tokenizer_
    """
    for _ in range(3):
        played.play([("span", "Load tokenizer!", [("gap", 1)])])
    assert spans(played) == [("x-Load_tokenizer_", 1)] * 3
    assert warnings(caplog) == [
        "torchett: no account 'Load tokenizer!'. Its time is recorded as x-Load_tokenizer_"
    ]


def test_a_misspelt_account_is_recorded_with_the_account_that_was_meant_in_the_warning(
    played: Player, caplog: pytest.LogCaptureFixture
) -> None:
    played.play([("span", "checkpoint_blokced", [("gap", 1)])])
    assert spans(played) == [("x-checkpoint_blokced", 1)]
    assert warnings(caplog) == [
        "torchett: no account 'checkpoint_blokced': did you mean 'checkpoint_blocked'?"
        " Its time is recorded as x-checkpoint_blokced"
    ]


@pytest.mark.parametrize("name", ["effective", "unsaved", "detect", "restart_gap", "unattributed"])
def test_what_only_the_ledger_concludes_cannot_be_recorded(played: Player, name: str) -> None:
    """A trainer that says `effective` says so in an account of its own."""
    played.play([("span", name, [("gap", 1)])])
    assert spans(played) == [(f"x-{name}", 1)]


def test_ones_own_account_needs_no_warning(
    played: Player, caplog: pytest.LogCaptureFixture
) -> None:
    played.play([("span", "x-warmup_2", [("gap", 1)]), ("span", "data_wait", [("gap", 1)])])
    assert spans(played) == [("x-warmup_2", 1), ("data_wait", 1)]
    assert warnings(caplog) == []


@pytest.mark.parametrize("name", [None, 7, ["imports"], "x-", "", "x-ä", "\0", "x" * 5000])
def test_no_name_is_raised_into_the_trainer(played: Player, name: Any) -> None:
    """Whatever stands where a name should: the body runs, and a span is on record."""
    with played.recorder.span(name):
        played.clock.add(2)
    ((account, length),) = spans(played)
    assert account.startswith("x-")
    assert length == 2


def test_names_made_up_at_run_time_do_not_grow_for_ever(played: Player) -> None:
    """
    with ett.stage(f"x-step_{i}") … 3000 times
    """
    for i in range(3000):
        played.play([("span", f"x-step_{i}", [("gap", 1)])])
    found = {name for name, _ in spans(played)} | set(played.recorder._accounts)
    assert len(found - set(INDEX)) <= 1100
    assert "x-too_many_accounts" in found
    (path,) = played.run.glob("*/*.ett")
    assert path.stat().st_size < 300_000


def test_more_open_spans_than_the_table_holds_are_recorded_when_they_end(played: Player) -> None:
    """
    ├─ ├─ ├─ … 100 deep … ─┤ ─┤ ─┤
    """
    deep = [played.recorder.span("pre_train") for _ in range(OPEN_SLOTS + 36)]
    for timer in deep:
        timer.__enter__()
    played.clock.add(1)
    assert len(spans(played)) == OPEN_SLOTS  # of those still open, what the table holds
    for timer in reversed(deep):
        timer.__exit__()
    assert spans(played) == [("pre_train", 1)] * (OPEN_SLOTS + 36)


def test_threads_that_record_at_once_lose_nothing(played: Player) -> None:
    """
    8 threads │├┤├┤├┤├┤ …  │ 60 spans each, all begun at one signal
    """
    threads, each = 8, 60
    together = threading.Barrier(threads)

    def work(number: int) -> None:
        together.wait()
        for _ in range(each):
            with played.recorder.span(f"x-thread_{number}"):
                pass

    run_all([threading.Thread(target=work, args=(number,)) for number in range(threads)])
    found = [name for name, _ in spans(played)]
    assert sorted(found) == sorted(f"x-thread_{n}" for n in range(threads) for _ in range(each))
    assert RunReader(played.run).poll().notes == []


@pytest.mark.parametrize("spans", [1, 3 * SLOTS])
def test_threads_that_go_on_while_another_writes_to_disk_lose_nothing(
    played: Player, monkeypatch: pytest.MonkeyPatch, spans: int
) -> None:
    """
    main      s s s … s [ write ┄┄┄┄ a slow disk ┄┄┄┄ ] s s
    thread                  ├┤├┤├┤ … up to 3 rings full of spans, of an account it names

    Nor is anything on record twice.
    """
    write, steps = os.write, 2 * SLOTS
    slow = []

    def others() -> None:
        for _ in range(spans):
            with played.recorder.span("x-thread"):
                played.clock.add(1)

    def slow_write(fd: int, data: bytes) -> int:
        if not slow:
            slow.append(fd)
            run_all([threading.Thread(target=others)])
        return write(fd, data)

    monkeypatch.setattr(os, "write", slow_write)
    played.play([("times", steps, [("step", 1, [("gap", 1)])])])
    assert slow, "the log was never written to"
    played.recorder.close({"exit_ns": played.clock()})
    monkeypatch.undo()
    reader = RunReader(played.run).poll()
    assert reader.notes == []
    assert in_log(played, STEP) == steps
    assert in_log(played, SPAN) == spans


def in_log(played: Player, kind: int) -> int:
    """How many steps or spans the log's frames stand for."""
    (path,) = played.run.glob("*/*.ett")
    data = path.read_bytes()
    pieces = list(chunks(memoryview(data)[data.index(b"\n") + 1 :]))
    frames = [
        frame
        for piece in pieces
        if isinstance(piece, Chunk) and piece.kind == FRAMES
        for frame in FRAME.iter_unpack(piece.payload)
    ]
    return sum(frame[2] for frame in frames if frame[0] == kind)


def run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_span_still_open_is_booked_until_the_attempt_ended(played: Player) -> None:
    """
    s──s ├─ checkpoint_blocked ┄┄┄┄┄ ✗ end
    """
    played.play([("step", 1, [("gap", 2)]), ("open", 0, "checkpoint_blocked", False), ("gap", 1)])
    launched(
        played.run,
        {"event": "start", "attempt": 0, "t_ns": 0},
        {"event": "end", "attempt": 0, "t_ns": 9 * UNIT_NS, "outcome": "failed"},
    )
    ledger = RunReader(played.run).poll().ledger()
    units = {name: ns / UNIT_NS for name, ns in ledger.accounts.items()}
    assert units == {"unsaved": 2, "checkpoint_blocked": 7}


def test_an_open_background_span_takes_no_time(played: Player) -> None:
    """
    s──s ├─ publish, in the background ┄┄┄┄ ✗ end
    """
    played.play([("step", 1, [("gap", 2)]), ("open", 0, "publish", True), ("gap", 1)])
    launched(
        played.run,
        {"event": "start", "attempt": 0, "t_ns": 0},
        {"event": "end", "attempt": 0, "t_ns": 9 * UNIT_NS, "outcome": "failed"},
    )
    ledger = RunReader(played.run).poll().ledger()
    assert {name: ns / UNIT_NS for name, ns in ledger.accounts.items()} == {
        "unsaved": 2,
        "detect": 7,
    }
