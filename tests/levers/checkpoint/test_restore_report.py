"""The report says what restarts were restored from, and what was unsaved, by tier."""

from torchett.levers.checkpoint.restore.report import (
    memory_line,
    restore_lines,
    restored_by_attempt,
    unsaved_by_tier,
)

FACTS = [
    (1, 1, {"step": 59, "tier": "memory", "tiers": {"memory": 2}, "refused": []}),
    (1, 0, {"step": 59, "tier": "memory", "tiers": {"memory": 2}, "refused": []}),
    (2, 0, {"step": 40, "tier": "durable", "tiers": {"durable": 2}, "refused": ["step 80: CRC"]}),
    (3, 0, {"step": 7}),  # of a record from before tiers
]
UNSAVED_NS = {1: 1_310_000_000, 2: 25_020_000_000, None: 500_000_000}


def test_a_line_an_attempt_and_the_sums() -> None:
    restored = restored_by_attempt(FACTS)
    assert list(restored) == [1, 2]
    assert restore_lines(restored, UNSAVED_NS) == [
        "restored, attempt 1: step 59 from memory (2 ranks); 1.31 rank-seconds unsaved",
        "restored, attempt 2: step 40 from storage (2 ranks); 25.02 rank-seconds unsaved"
        "; refused: step 80: CRC",
        "unsaved by tier: memory 1.31 s · nothing 0.50 s · storage 25.02 s",
    ]
    sums = unsaved_by_tier(restored, UNSAVED_NS)
    assert sums == {"memory": 1.31, "durable": 25.02, "nothing": 0.5}


def test_what_is_held_of_memory_is_shown() -> None:
    facts = [
        (0, 0, {"buffers": 3, "neighbour": False, "bytes": 3 << 30}),
        (1, 0, {"buffers": 3, "neighbour": True, "bytes": 5 << 30}),
        (1, 1, {"buffers": 3, "neighbour": True, "bytes": 5 << 30}),
    ]
    assert memory_line(facts) == [
        "checkpoints held 10.00 GiB of memory on 2 ranks: 3 copies of each state, "
        "and copies of other nodes'"
    ]
    assert memory_line([]) == []


def test_a_run_without_restarts_has_no_lines() -> None:
    assert restore_lines({}, {}) == []


def test_a_small_state_is_said_in_mib() -> None:
    fact = {"bytes": 3 << 20, "buffers": 3, "neighbour": False}
    (line,) = memory_line([(0, 0, fact)])
    assert line == "checkpoints held 3.0 MiB of memory on 1 rank: 3 copies of each state"
