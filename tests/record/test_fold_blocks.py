"""What a folded log looks like: blocks of steps, and what stands alone between them."""

from pathlib import Path

import pytest
from player import UNIT_NS, Move, Player, player

from torchett.model.accounts import NAMES
from torchett.record.flight.format import BACKGROUND, CHECKPOINT, FRAME, FRAMES, STEP, Chunk, chunks

ONE: Move = ("step", 1, [("gap", 2)])
PAD: Move = ("times", 64, [ONE])  # what a closed record keeps one by one


def raw_frames(played: Player) -> list[tuple[int, ...]]:
    """The frames of the record, closed after 64 more steps that stay as they were."""
    played.play([PAD])
    played.recorder.close({"exit_ns": played.clock()})
    (path,) = played.run.glob("*/*.ett")
    data = path.read_bytes()
    pieces = chunks(memoryview(data)[data.index(b"\n") + 1 :])
    whole = [one for one in pieces if isinstance(one, Chunk) and one.kind == FRAMES]
    return [frame for one in whole for frame in FRAME.iter_unpack(one.payload)][:-64]


def frames(played: Player) -> list[tuple[str, int, int, float, float]]:
    """Those frames as what, index, count, begin and end."""
    found = []
    for kind, account, count, index, t0, t1, *_ in raw_frames(played):
        name = {STEP: "step", CHECKPOINT: "saved"}.get(kind, NAMES[account])
        name += " (background)" if kind == BACKGROUND else ""
        found.append((name, index, count, t0 / UNIT_NS, t1 / UNIT_NS))
    return found


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Player:
    return player(tmp_path / "job", monkeypatch)


def test_steps_become_one_block_but_for_the_first(played: Player) -> None:
    """
    0─2  2─4 4─6 … 18─20       step 0 as it was, steps 1–9 in one
    """
    played.play([("times", 10, [ONE])])
    assert frames(played) == [("step", 0, 1, 0, 2), ("step", 1, 9, 2, 20)]


def test_a_block_keeps_its_window_and_the_time_of_each_account(played: Player) -> None:
    """
    w═s──s w═s──s w═s──s       9 turns of 1 unit of waiting and 2 of training
    └ data_wait ×9 ┘└ steps 1–9 ┘
    """
    played.play([("loop", [(1, [("gap", 2)])] * 10)])
    assert frames(played) == [
        ("get_first_batch_data", 0, 1, 0, 1),
        ("step", 0, 1, 1, 3),
        ("data_wait", 0, 9, 3, 12),
        ("step", 1, 9, 12, 30),
    ]


def test_time_that_is_neither_lies_before_the_steps_of_a_block(played: Player) -> None:
    """
    s─s · s─s · s─s ·          gaps of 1 between steps of 2
    └ gap ┘└ steps ┘
    """
    played.play([("times", 5, [ONE, ("gap", 1)])])
    found = frames(played)
    assert found[0] == ("step", 0, 1, 0, 2)
    assert found[1] == ("step", 1, 4, 14 - 8, 14)


def test_a_long_span_stands_alone(played: Player) -> None:
    """
    s s s ├─ recompile, 120 ms ─┤ s s s
    """
    played.play([("times", 4, [ONE]), ("span", "recompile", [("gap", 12)]), ("times", 3, [ONE])])
    assert frames(played) == [
        ("step", 0, 1, 0, 2),
        ("step", 1, 3, 2, 8),
        ("recompile", 0, 1, 8, 20),
        ("step", 4, 3, 20, 26),
    ]


def test_a_block_ends_with_the_step_that_a_checkpoint_holds(played: Player) -> None:
    """
    s0 s1 s2 s3 s4 ckpt(2) s5 s6      blocks: 1–2, 3–4, 5–6
    """
    played.play([("times", 5, [ONE]), ("saved", 2), ("times", 2, [ONE]), ("saved", 0)])
    steps = [one for one in frames(played) if one[0] == "step"]
    ends = {index + count - 1 for _, index, count, _, _ in steps}
    assert {0, 2, 6} <= ends
    assert [one for one in steps if one[1] <= 2 < one[1] + one[2] - 1] == []


def test_a_block_ends_where_indices_jump(played: Player) -> None:
    """
    s0 s1 s2 s3 │ s9 s10 s11
    """
    played.play([("times", 4, [ONE]), ("jump", 5), ("times", 3, [ONE]), ("jump", 1)])
    assert frames(played) == [
        ("step", 0, 1, 0, 2),
        ("step", 1, 3, 2, 8),
        ("step", 9, 3, 8, 14),
    ]


def test_counts_add_up(played: Player) -> None:
    """
    step(0) step(1, count=4) step(5, count=4) step(9, count=4)
    """
    four: Move = ("step", 4, [("gap", 2)])
    played.play([ONE, four, four, four, ("jump", 1)])
    assert frames(played) == [("step", 0, 1, 0, 2), ("step", 1, 12, 2, 8)]


def test_short_background_spans_of_a_block_become_one_each(played: Player) -> None:
    """
    s s s s s      with a background span inside each: one from the first begin to the last end
    """
    upload: list[Move] = [("open", 0, "publish", True), ("gap", 1), ("close", 0), ("gap", 1)]
    played.play([ONE, ("times", 4, [("step", 1, upload)])])
    assert ("publish (background)", 0, 4, 2, 9) in frames(played)


def test_shortest_middle_and_longest_step_of_a_block_are_kept(played: Player) -> None:
    """
    s ─1─ ─2─ ─9─      the spread of a block is of true durations, not of its average
    """
    played.play([*(("step", 1, [("gap", dt)]) for dt in (5, 1, 2, 9)), ("jump", 1)])
    _, block = raw_frames(played)
    assert block[2] == 3
    assert block[6:9] == pytest.approx((0.01, 0.02, 0.09))
