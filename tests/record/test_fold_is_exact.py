"""Folding loses detail, never a nanosecond: the ledger of a folded record is that of a perfect one.

The recorder is played by hand (see player.py), its record is read back as a run, and the ledger
is compared with the one of what was played.
"""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from player import Move, clear, facts, indices_in, launched, perfect, player

from torchett.runs.reader import RunReader

STEP: Move = ("step", 1, [("gap", 2)])
STEPS_600: Move = ("times", 600, [STEP])
ACCOUNTS = ("data_wait", "recompile", "pt2_compile", "checkpoint_blocked", "evaluation")
RUNS_WITH_DURATION = (0, 1, 2, 3, 12)  # units of 10 ms: the last one is long enough to stand alone


def check(moves: list[Move], *, close: bool = True) -> None:
    """Play the moves, read the record back, and compare."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        run = Path(folder) / "job"
        played = player(run, patch)
        played.play(moves)
        played.finish()
        end_ns = played.clock() + 7
        if close:
            played.recorder.close({"exit_ns": played.clock()})
        launched(
            run,
            {"event": "start", "attempt": 0, "t_ns": 0},
            {"event": "end", "attempt": 0, "t_ns": end_ns, "outcome": "success"},
        )
        reader = RunReader(run).poll()
        assert [note for note in reader.notes if "recorded twice" not in note] == []
        assert facts(reader.ledger()) == facts(perfect(reader.job, (0, played)))
        assert indices_in(reader.history().rows) == played.indices
        clear()


def test_steps_one_after_the_other() -> None:
    """
    s s s s s …
    """
    check([STEPS_600, ("gap", 3), STEPS_600])


def test_steps_with_waits() -> None:
    """
    w═s w═s w═s …     and pauses that are neither
    """
    check([("loop", [(i % 3, [("gap", 1 + i % 2)]) for i in range(700)])])


def test_a_span_inside_every_step() -> None:
    """
    step      ├────────┤ ├────────┤ ├────────┤
    recompile    ├──┤       ├──┤       ├──┤

    A half of the ring ends between a span and the step around it.
    """
    inside: list[Move] = [("gap", 1), ("span", "recompile", [("gap", 2)]), ("gap", 1)]
    check([("span", "imports", [("gap", 1)]), ("times", 700, [("step", 1, inside), ("gap", 1)])])


def test_short_stages_of_the_start_and_a_compile_inside_the_first_step() -> None:
    """
    ├imports┤├device_init┤├ … ┤    ├─ step 0 ─────────────┤├ step 1 ┤
                                      ├─ pt2_compile ─┤
    """
    stages: list[Move] = [("span", name, [("gap", 2)]) for name in ("imports", "device_init")]
    compiles: list[Move] = [("gap", 1), ("span", "pt2_compile", [("gap", 9)]), ("gap", 1)]
    check([*stages, *stages, ("gap", 4), ("step", 1, compiles), STEPS_600])


def test_a_span_at_the_edge_of_a_half_whose_step_is_in_the_next() -> None:
    """
    entries   … s s recompile ┊ s (around it) s s s … nothing but steps
    """
    inside: list[Move] = [("gap", 1), ("span", "recompile", [("gap", 2)]), ("gap", 1)]
    spaced: list[Move] = [STEP, ("gap", 1)]
    check([("times", 255, spaced), ("step", 1, inside), ("gap", 1), ("times", 600, spaced)])


@pytest.mark.parametrize("steps", [3, 30, 300])
@pytest.mark.parametrize("before", [10, 200, 250, 500])
def test_a_threads_span_that_covers_many_steps(before: int, steps: int) -> None:
    """
    steps       ├─┤ ├─┤ ├─┤ ├─┤ ├─┤ ├─┤ ├─┤
    evaluation        ├───────────────┤          by another thread
    """
    spaced: Move = ("times", steps, [STEP, ("gap", 1)])
    check(
        [
            ("times", before, [STEP, ("gap", 1)]),
            ("gap", 1),
            ("open", 0, "evaluation", False),
            spaced,
            ("close", 0),
            *([spaced] * 3),
            STEPS_600,
        ]
    )


@pytest.mark.parametrize("before", [10, 200, 250, 500])
def test_a_threads_span_that_begins_inside_a_step(before: int) -> None:
    """
    step        ├───────────────────┤ ├─┤ ├─┤ …
    recompile              ├─┤
    x-thread          ├────────────────────────── … still open when the ring is folded
    """
    inside: list[Move] = [("gap", 1), ("open", 0, "x-thread", False), ("gap", 1)]
    inside += [("span", "recompile", [("gap", 2)]), ("gap", 1)]
    many: Move = ("times", before, [STEP, ("gap", 1)])
    check([many, ("step", 1, inside), STEPS_600, ("close", 0), STEPS_600])


@pytest.mark.parametrize("gap", [0, 1])
def test_a_short_span_that_outlasts_the_last_step_of_a_block(gap: int) -> None:
    """
    steps     ├─┤├─┤├─┤├─┤      ckpt       ├─┤ …
    recompile          ├───────────┤                ends after the block's last step
    """
    check(
        [
            ("times", 5, [STEP, ("gap", gap)]),
            ("step", 1, [("gap", 1), ("open", 0, "recompile", False), ("gap", 1)]),
            ("gap", 3),
            ("close", 0),
            ("gap", 5),
            ("saved", 0),
            STEPS_600,
        ]
    )


def test_a_jump_of_the_index_under_a_threads_span() -> None:
    """
    steps     s4 s5 s9 s10       the numbers are kept
    recompile   ├────┤
    """
    inside: list[Move] = [("gap", 1), ("open", 0, "recompile", False), ("gap", 1)]
    after: list[Move] = [("gap", 1), ("close", 0), ("gap", 1)]
    start: Move = ("times", 5, [STEP])
    check([start, ("step", 1, inside), ("jump", 3), ("step", 1, after), start, STEPS_600])


def test_a_block_is_closed_at_every_checkpoint(tmp_path: Path) -> None:
    """
    attempt 0   s s s s s[4] s s ckpt 4 s s s …  ✗
    attempt 1                s …                  resumes at 5: nothing has to be estimated
    """
    resume_after(tmp_path, [("times", 5, [STEP]), ("times", 3, [STEP]), ("saved", 3)], resume=5)


def test_a_block_is_closed_where_training_waited_for_a_checkpoint(tmp_path: Path) -> None:
    """
    attempt 0   s s s s s[4] checkpoint_blocked s s s … (1000 steps) … ckpt 4 is durable  ✗
    attempt 1                                   s …       resumes at 5
    """
    blocked: Move = ("span", "checkpoint_blocked", [("gap", 1)])
    late: list[Move] = [("times", 1000, [STEP]), ("saved", 1000)]
    resume_after(tmp_path, [("times", 5, [STEP]), blocked, *late], resume=5)


def resume_after(run: Path, moves: list[Move], resume: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        first = player(run, patch)
        first.play([*moves, STEPS_600])
        first.recorder.close({"exit_ns": first.clock()})
        died_ns = first.clock()
        second = player(run, patch, attempt=1, began_ns=died_ns)
        second.clock.now_ns, second.index = died_ns, resume
        second.play([STEP])
        second.recorder.close({"exit_ns": second.clock()})
    launched(
        run,
        {"event": "start", "attempt": 0, "t_ns": 0},
        {"event": "end", "attempt": 0, "t_ns": died_ns, "outcome": "failed"},
        {"event": "start", "attempt": 1, "t_ns": died_ns},
        {"event": "end", "attempt": 1, "t_ns": second.clock(), "outcome": "success"},
    )
    reader = RunReader(run).poll()
    ledger = reader.ledger()
    assert facts(ledger) == facts(perfect(reader.job, (0, first), (1, second)))
    assert ledger.estimated_ns == 0


DT = st.sampled_from(RUNS_WITH_DURATION)
GAP = st.tuples(st.just("gap"), DT)
SLOT = st.integers(0, 2)
THREAD = st.one_of(
    st.tuples(st.just("open"), SLOT, st.sampled_from(ACCOUNTS), st.booleans()),
    st.tuples(st.just("close"), SLOT),
)
LEAF = st.one_of(GAP, GAP, THREAD, st.tuples(st.just("saved"), st.integers(0, 2)))


def inside(moves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(moves, max_size=4)
    return st.tuples(st.just("span"), st.sampled_from(ACCOUNTS), some)


BODY = st.lists(st.recursive(LEAF, inside, max_leaves=4), max_size=4)
MOVE = st.one_of(
    st.tuples(st.just("step"), st.sampled_from((1, 1, 4)), BODY),
    st.tuples(st.just("loop"), st.lists(st.tuples(DT, BODY), min_size=1, max_size=4)),
    st.recursive(LEAF, inside, max_leaves=4),
    st.tuples(st.just("jump"), st.integers(-2, 2)),
)
MOVES = st.lists(MOVE, max_size=8)


# A thread's span around another one of the very same time: the later record has it.
SAME_TIME = (
    "loop",
    [
        (
            0,
            [
                ("open", 0, "checkpoint_blocked", False),
                ("span", "data_wait", [("gap", 1)]),
                ("close", 0),
            ],
        )
    ],
)

# The ring is folded in halves of 256 entries, and up to the 64th from the end when it is closed:
# the random moves lie around those edges.
BEFORE = st.one_of(st.integers(0, 12), st.integers(230, 256))
AFTER = st.integers(30, 70)


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(BEFORE, MOVES, st.sampled_from((0, 70, 250, 600)), MOVES, AFTER)
@example(0, [("jump", 0)], 0, [], 70)
@example(230, [SAME_TIME], 70, [], 30)
def test_whatever_is_recorded(
    before: int, moves: list[Move], between: int, more: list[Move], after: int
) -> None:
    """Steps with waits, spans nested and across each other, long and short, checkpoints, jumps."""
    steps = [("times", n, [STEP]) for n in (before, between, after)]
    check([steps[0], *moves, steps[1], *more, steps[2]])
