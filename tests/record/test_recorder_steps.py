"""Steps as a loop tells them: what counts as one, and under which number."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from player import UNIT_NS, Player, player

from torchett.ledger import Rows
from torchett.report.sections.long_steps import long_steps_line
from torchett.runs.reader import RunReader


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Player:
    return player(tmp_path / "job", monkeypatch)


def read(played: Player) -> RunReader:
    """The record as it is on disk now; nothing was closed."""
    return RunReader(played.run).poll()


def steps(played: Player) -> list[tuple[int, int, float]]:
    """Index, count and length in units of every step on record."""
    rows = read(played).history().rows
    rows = rows.take(rows.is_step)
    lengths = ((rows.t1_ns - rows.t0_ns) / UNIT_NS).tolist()
    return list(zip(rows.index.tolist(), rows.count.tolist(), lengths, strict=True))


def spans(played: Player) -> list[tuple[str, float]]:
    """Account and length in units of every span on record."""
    history = read(played).history()
    rows: Rows = history.rows.take(~history.rows.is_step)
    names = [history.accounts.names[number] for number in rows.account.tolist()]
    return list(zip(names, ((rows.t1_ns - rows.t0_ns) / UNIT_NS).tolist(), strict=True))


class Loader:
    """Batches 0 … size − 1; each takes `wait` units to come, and then `then` is raised."""

    def __init__(self, played: Player, size: int, wait: int = 1, then: Exception | None = None):
        self.played, self.size, self.wait, self.then = played, size, wait, then

    def __iter__(self) -> Iterator[int]:
        for i in range(self.size):
            self.played.clock.add(self.wait)
            yield i
        if self.then:
            raise self.then


def test_each_turn_of_the_loop_is_a_step_from_start_on(played: Player) -> None:
    """
    w═s──s w═s──s w═s──s        numbered from 40
    """
    batches = []
    for batch in played.recorder.steps(Loader(played, 3), 40):
        batches.append(batch)
        played.clock.add(2)
    assert batches == [0, 1, 2]
    assert steps(played) == [(40, 1, 2), (41, 1, 2), (42, 1, 2)]


def test_waiting_is_data_wait_but_for_the_first_batch_of_all(played: Player) -> None:
    """
    first epoch   get_first_batch_data s w═s
    second epoch  w═s w═s
    """
    for epoch in range(2):
        for _ in played.recorder.steps(Loader(played, 2, wait=3), 2 * epoch):
            played.clock.add(1)
    waits = ["get_first_batch_data", "data_wait", "data_wait", "data_wait"]
    assert sorted(spans(played)) == sorted((name, 3.0) for name in waits)


def test_a_loader_without_batches_makes_no_step(played: Player) -> None:
    """The batch after it is the first one all the same."""
    assert list(played.recorder.steps([], 0)) == []
    assert steps(played) == []
    for _ in played.recorder.steps(Loader(played, 1, wait=3), 0):
        played.clock.add(1)
    assert ("get_first_batch_data", 3.0) in spans(played)


def test_a_loop_left_after_its_work_counts_that_step(played: Player) -> None:
    """
    s──s s──s s──break
    """
    for batch in played.recorder.steps(Loader(played, 9), 0):
        played.clock.add(2)
        if batch == 2:
            break
    assert [index for index, _, _ in steps(played)] == [0, 1, 2]


def test_a_loop_left_before_its_work_does_not(played: Player) -> None:
    """
    s──s s──s break             a turn much shorter than the one before did no work
    """
    for batch in played.recorder.steps(Loader(played, 9), 0):
        if batch == 2:
            break
        played.clock.add(2)
    assert [index for index, _, _ in steps(played)] == [0, 1]


def test_a_loop_left_while_an_error_is_handled_counts_its_last_step_too(played: Player) -> None:
    """
    except MemoryError: s──s s──s s──break
    """
    try:
        raise MemoryError
    except MemoryError:
        for batch in played.recorder.steps(Loader(played, 9), 0):
            played.clock.add(2)
            if batch == 2:
                break
    assert [index for index, _, _ in steps(played)] == [0, 1, 2]


@pytest.mark.parametrize(
    "cut", [lambda every: islice(every, 3), lambda every: zip(range(3), every, strict=False)]
)
def test_a_loop_over_some_of_the_steps_counts_the_last_one_too(
    played: Player, cut: Callable[[Any], Any]
) -> None:
    """
    s──s s──s s──s             and no fourth batch is asked for
    """
    for epoch in range(2):
        for _ in cut(played.recorder.steps(Loader(played, 9), 3 * epoch)):
            played.clock.add(2)
    assert [index for index, _, _ in steps(played)] == [0, 1, 2, 3, 4, 5]


def test_a_turn_in_which_another_loop_raises_is_no_finished_step(played: Player) -> None:
    """
    s──s s──s s──✗             what it evaluates on fails
    """

    def loop() -> None:
        for batch in islice(played.recorder.steps(Loader(played, 9), 0), 5):
            played.clock.add(2)
            for _ in (1 // x for x in [2 - batch]):
                pass

    with pytest.raises(ZeroDivisionError):
        loop()
    assert [index for index, _, _ in steps(played)] == [0, 1]


def test_a_turn_that_raises_is_no_finished_step(played: Player) -> None:
    """
    s──s s──s s──✗
    """

    def loop() -> None:
        for batch in played.recorder.steps(Loader(played, 9), 0):
            played.clock.add(2)
            if batch == 2:
                raise ZeroDivisionError("in the body")

    with pytest.raises(ZeroDivisionError, match="in the body"):
        loop()
    assert [index for index, _, _ in steps(played)] == [0, 1]


@pytest.mark.parametrize("size", [0, 1, 3])
def test_what_the_loader_raises_reaches_the_loop(played: Player, size: int) -> None:
    """
    s──s s──s ✗ in the loader: the steps before it are finished
    """

    def loop() -> None:
        for _ in played.recorder.steps(Loader(played, size, then=OSError("gone")), 0):
            played.clock.add(2)

    with pytest.raises(OSError, match="gone"):
        loop()
    assert [index for index, _, _ in steps(played)] == list(range(size))


def test_a_step_that_raises_is_not_finished(played: Player) -> None:
    """
    with ett.step(0): ✗         and the error goes on as it was
    """
    with pytest.raises(ZeroDivisionError), played.recorder.step(0):
        raise ZeroDivisionError
    with played.recorder.step(1):
        played.clock.add(2)
    assert steps(played) == [(1, 1, 2)]


def test_one_step_may_stand_for_many(played: Player) -> None:
    """
    with ett.step(20, count=10): …
    """
    with played.recorder.step(20, 10):
        played.clock.add(5)
    assert steps(played) == [(20, 10, 5)]
    assert read(played).ledger().last_step == 29


@pytest.mark.parametrize(
    ("index", "expected"),
    [(np.int64(7), 7), (np.int32(7), 7), (np.array(7), 7), (True, 1), (7.0, 7), ("7", 7)],
)
def test_a_number_of_any_kind_is_an_index(played: Player, index: Any, expected: int) -> None:
    """The step counts, and nothing is said to be lost."""
    with played.recorder.step(index):
        played.clock.add(1)
    assert steps(played) == [(expected, 1, 1)]
    assert read(played).notes == []


@pytest.mark.parametrize("index", [None, "seven", 1 << 70, object(), [1]])
def test_what_is_no_number_costs_a_warning_and_that_step(
    played: Player, index: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is raised into the loop, and the steps around it are kept."""
    for i in (0, index, 2):
        with played.recorder.step(i):
            played.clock.add(1)
    assert [index for index, _, _ in steps(played)] == [0, 2]
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "is not a step number" in warning.getMessage()


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("count", [0, -3, 2.5, None, 1 << 34, 1 << 40])
def test_an_impossible_count_costs_at_most_that_step(played: Player, count: Any, at: int) -> None:
    """
    s s s with step(3, count=0) s s … (700 of them)
    """
    for i in range(700):
        with played.recorder.step(i, count if i == at else 1):
            played.clock.add(1)
    found = {index + k for index, count, _ in steps(played) for k in range(min(count, 300))}
    assert found >= set(range(700)) - {at}


def test_checkpoints_of_no_step_cost_one_warning(
    played: Player, caplog: pytest.LogCaptureFixture
) -> None:
    for step in ("four", None, 1 << 70):
        played.recorder.checkpoint_durable(step)  # type: ignore[arg-type]
    played.recorder.checkpoint_durable(np.int64(4))
    assert len(caplog.records) == 1
    assert [c.step for c in read(played).history().checkpoints] == [4]


@pytest.mark.parametrize("size", [1, 7, 32, 33, 500])
def test_steps_told_in_groups_are_those_told_one_by_one(played: Player, size: int) -> None:
    """
    w═s──s w═s──s w═s──s … 1,200 of them      a unit of waiting, two of a step
    """
    every = 3 * UNIT_NS
    for first in range(0, 1200, size):
        told = range(first, min(first + size, 1200))
        begin, end = every * first, every * told.stop
        played.recorder.past_step(begin, begin + UNIT_NS * len(told), end, first, len(told))
    found = steps(played)
    assert [index + count for index, count, _ in found] == [i for i, *_ in found[1:]] + [1200]
    assert sum(length for *_, length in found) == 2400
    assert sum(length for name, length in spans(played) if name == "data_wait") == 1200


def test_groups_of_steps_beside_another_thread_lose_nothing(played: Player) -> None:
    """
    w═s──s w═s──s w═s──s …       20,000 of them, in groups of 64
    x x x x x x x x x x x …      spans of a thread, 2,000 of them, at another time
    """
    recorder, every, later = played.recorder, 300_000, 10**12

    def others() -> None:
        for k in range(2000):
            recorder.past_span("x-other", later + 10 * k, later + 10 * k + 1)

    thread = threading.Thread(target=others)
    usual, limit = sys.getswitchinterval(), 1e-6
    sys.setswitchinterval(limit)
    try:
        thread.start()
        for first in range(0, 20_000, 64):
            told = range(first, min(first + 64, 20_000))
            begin, end = every * first, every * told.stop
            recorder.past_step(begin, begin + 10 * len(told), end, first, len(told))
    finally:
        thread.join()
        sys.setswitchinterval(usual)
    rows = read(played).history().rows
    assert int(rows.count[rows.is_step].sum()) == 20_000
    lengths = (rows.t1_ns - rows.t0_ns)[~rows.is_step & (rows.t0_ns >= later)]
    assert int(lengths.sum()) == 2000
    assert read(played).notes == []


def test_steps_of_ett_step_may_nest_and_be_many_at_once(played: Player) -> None:
    """
    with ett.step(3): ─────────────┤        both are made before either is entered
         with ett.step(4): ──┤
    """
    outer, inner = played.recorder.step(3), played.recorder.step(4)
    with outer:
        played.clock.add(2)
        with inner:
            played.clock.add(3)
    assert sorted(steps(played)) == [(3, 1, 5), (4, 1, 3)]


def test_threads_record_steps_of_their_own(played: Player) -> None:
    begun, over = threading.Barrier(4), threading.Barrier(4)

    def work(index: int) -> None:
        with played.recorder.step(index):
            begun.wait()
            over.wait()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(index for index, _, _ in steps(played)) == [0, 1, 2, 3]
    assert read(played).notes == []


def test_loops_without_a_start_go_on_counting(played: Player) -> None:
    for _ in range(3):
        for _ in played.recorder.steps(Loader(played, 4), None):
            played.clock.add(1)
    assert [index for index, _, _ in steps(played)] == list(range(12))
    assert read(played).notes == []


@pytest.mark.parametrize("by_loop", [True, False])
def test_a_number_that_repeats_is_said_once_with_the_cure(
    played: Player, by_loop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        if by_loop:
            for _ in played.recorder.steps(Loader(played, 4), 0):
                played.clock.add(1)
        else:
            for index in range(4):
                with played.recorder.step(index):
                    played.clock.add(1)
    (note,) = read(played).notes
    assert note.startswith("step 0 was recorded twice")
    assert "leave `start` out of ett.steps" in note
    assert len(caplog.records) == 1


def test_long_steps_are_named_beside_the_headline(played: Player) -> None:
    """
    s s s … s ──────── 2 s ────────┤save├ s s s …     the save was seen, and is not counted
    """
    for index in range(900):
        with played.recorder.step(index):
            played.clock.add(200 if index == 300 else 1)
            if index == 300:
                with played.recorder.span("checkpoint_blocked"):
                    played.clock.add(50)
    reader = read(played)
    ledger = reader.ledger()
    line = long_steps_line(ledger, reader.history().rows)
    assert line is not None
    assert line.startswith("1 step of 2.0 s where 10 ms is usual: if it did not train, ETT is ")
    without = float(line.split()[-1].rstrip("%"))
    assert without == pytest.approx(100 * 8.99e9 / ledger.rank_ns, abs=0.1)
