"""events/1 in and out: what is written settles to the same ledger."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from histories import random_history
from player import Move, launched, player

from torchett.ledger import History, Ledger, Rows, settle
from torchett.ledger.rows import AccountTable
from torchett.model import Attempt, Job, Step
from torchett.runs import events
from torchett.runs.imported import write_run
from torchett.runs.reader import RunReader

JOB = {"event": "job", "format": "events/1", "job": "a", "ranks": 1}
START = {"event": "attempt_start", "attempt": 0, "t": 0}
STEP = {"event": "step", "attempt": 0, "rank": 0, "step": 0, "t0": 1, "t1": 3}
END = {"event": "attempt_end", "attempt": 0, "t": 4, "outcome": "success"}


def parsed(history: list[dict[str, Any]]) -> History:
    return events.parse([json.dumps(event) for event in history])


def same(one: Ledger, other: Ledger) -> None:
    assert one.to_json() == other.to_json()
    assert (one.accounts, one.groups, one.losses) == (other.accounts, other.groups, other.losses)


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_come_back_the_same(seed: int) -> None:
    """
    history → lines → history → ledger
    """
    rng = random.Random(seed)
    for _ in range(100):
        history = parsed(random_history(rng))
        again = events.parse(events.write(history))
        same(settle(again), settle(history))
        assert list(events.write(again))[1:] == list(events.write(history))[1:]


def test_random_histories_come_back_the_same_through_a_run_folder(tmp_path: Path) -> None:
    """
    history → run folder (`ett import`) → ledger
    """
    rng = random.Random(7)
    for case in range(60):
        history = parsed(random_history(rng))
        if not history.job.attempts:
            continue
        write_run(history, tmp_path / str(case))
        reader = RunReader(tmp_path / str(case)).poll()
        assert reader.notes == []
        same(reader.ledger(), settle(history))
        again = events.parse(events.write(reader.history()))
        same(settle(again), settle(history))


def test_a_record_comes_back_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    flight record → `ett export --format events` → `ett import`, to the nanosecond

    Odd lengths, gaps between all steps, and the wall clock of today.
    """
    run = tmp_path / "job"
    played = player(run, monkeypatch)
    played.clock.now_ns = 1_790_000_000_123_456_789
    odd: Move = ("step", 1, [("gap", 1)])
    for i in range(300):
        played.play([odd])
        played.clock.now_ns += 1 + i % 7
    played.play([("span", "x-mine", [("gap", 1)]), ("saved", 0)])
    launched(
        run,
        {"event": "start", "attempt": 0, "t_ns": 1_790_000_000_000_000_001},
        {"event": "end", "attempt": 0, "t_ns": played.clock() + 13, "outcome": "failed"},
    )
    history = RunReader(run).poll().history()
    same(settle(events.parse(events.write(history))), settle(history))


def test_a_folded_block_is_written_out_as_steps_of_equal_length() -> None:
    """
    ┌ steps 4–6 in 9 s ┐ → 4 in 3 s, 5 in 3 s, 6 in 3 s
    """
    accounts = AccountTable()
    attempts = (Attempt(number=0, start_ns=0, ranks=1, end_ns=9 * 10**9, outcome="success"),)
    rows = Rows.from_values([Step(index=4, t0_ns=0, t1_ns=9 * 10**9, count=3)], accounts)
    history = History(job=Job(name="a", ranks=1, attempts=attempts), rows=rows, accounts=accounts)
    again = events.parse(events.write(history))
    assert again.rows.index.tolist() == [4, 5, 6]
    assert (again.rows.t1_ns - again.rows.t0_ns).tolist() == [3 * 10**9] * 3
    same(settle(again), settle(history))


def test_unknown_keys_are_ignored() -> None:
    plain = [JOB, START, STEP, END]
    more = [event | {"host": "a", "nested": {"x": [1, None]}} for event in plain]
    same(settle(parsed(more)), settle(parsed(plain)))


def test_blank_lines_are_skipped() -> None:
    lines = [json.dumps(event) for event in (JOB, START, STEP, END)]
    spaced = ["", "  ", *(part for line in lines for part in (line, "", "\t", "\r"))]
    same(settle(events.parse(spaced)), settle(events.parse(lines)))


def test_a_file_of_another_system_is_read(tmp_path: Path) -> None:
    """Lines end with ⏎ or with ␍⏎, the last one with or without."""
    lines = [json.dumps(event) for event in (JOB, START, STEP, END)]
    for number, text in enumerate(("\n".join(lines), "\r\n".join(lines) + "\r\n")):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(text.encode())
        same(settle(events.read(path)), settle(events.parse(lines)))


def test_order_is_free() -> None:
    """But for spans and steps with the same times, of which the later record counts."""
    rng = random.Random(5)
    second = [
        {"event": "attempt_start", "attempt": 1, "t": 5},
        STEP | {"attempt": 1, "step": 1, "t0": 6, "t1": 7},
        END | {"attempt": 1, "t": 9},
    ]
    history = [JOB, START, STEP, END, *second]
    expected = settle(parsed(history))
    for _ in range(20):
        rng.shuffle(history)
        same(settle(parsed(history)), expected)


def test_times_count_from_the_earliest_of_them() -> None:
    """A clock of today or one that starts at 0: the same account."""
    keys = ("t", "t0", "t1")
    late = [
        {k: v + 1_790_000_000 if k in keys else v for k, v in event.items()}
        for event in (JOB, START, STEP, END)
    ]
    same(settle(parsed(late)), settle(parsed([JOB, START, STEP, END])))


def test_optional_keys_may_be_null() -> None:
    start = START | {"submitted": None, "allocated": None, "ranks": None}
    end = END | {"cause": None, "domain": None}
    same(settle(parsed([JOB, start, STEP, end])), settle(parsed([JOB, START, STEP, END])))


def test_a_job_without_attempts_is_a_history_too() -> None:
    assert settle(parsed([JOB])).rank_ns == 0
    assert [json.loads(line)["event"] for line in events.write(parsed([JOB]))] == ["job"]
