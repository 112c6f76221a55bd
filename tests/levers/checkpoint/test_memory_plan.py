"""How many copies ranks hold, who copies to whom, and what is said where memory is short."""

import pytest

from torchett.levers.checkpoint.memory.kept import SnapshotId
from torchett.levers.checkpoint.memory.left_over import NodeReport, Place, candidates
from torchett.levers.checkpoint.memory.plan import RankRoom, memory_plan, partner_of, said


def rooms(*room: int, nodes: str = "") -> list[RankRoom]:
    return [
        RankRoom(size=100, room=one, node=(nodes or "a" * len(room))[rank], host="h")
        for rank, one in enumerate(room)
    ]


@pytest.mark.parametrize(("least", "buffers"), [(0, 1), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_the_least_room_of_any_rank_counts(least: int, buffers: int) -> None:
    plan = memory_plan(rooms(9, least, 5), 0)
    assert plan.buffers == buffers
    assert plan.outlives == (buffers > 1)


def test_another_nodes_copies_need_room_for_five() -> None:
    assert memory_plan(rooms(4, 9, nodes="ab"), 0).partner is None
    plan = memory_plan(rooms(5, 5, nodes="ab"), 0)
    assert plan.partner == 1
    assert plan.held_bytes == 3 * 100 + 2 * 100


def test_copies_go_around_in_a_ring_of_nodes() -> None:
    nodes = ["a", "a", "b", "b", "c", "c"]
    assert [partner_of(rank, nodes) for rank in range(6)] == [2, 3, 4, 5, 0, 1]
    assert partner_of(0, ["a", "a"]) is None
    uneven = ["a", "a", "a", "b"]
    assert [partner_of(rank, uneven) for rank in range(4)] == [3, 3, 3, 0]
    assert memory_plan(rooms(9, 9, 9, 9, nodes="aaab"), 3).copy_bytes == 3 * 2 * 100


def test_what_is_lost_for_want_of_memory_is_said() -> None:
    def line(*room: int, nodes: str = "") -> str | None:
        told = rooms(*room, nodes=nodes)
        return said(memory_plan(told, 0), told)

    assert line(3, 3) is None
    assert line(5, 5, nodes="ab") is None
    assert "outlives its trainer" in (line(1, 9) or "")
    assert "wait for uploads" in (line(2, 9) or "")
    assert "no other node holds a copy" in (line(3, 9, nodes="ab") or "")


def place(token: str, step: int, rank: int, keeper: str = "k") -> Place:
    id = SnapshotId(token=token, step=step, rank=rank, world_size=2)
    return Place(id=id, own=True, node="a", keeper=keeper, address=("h", 1))


def report(*places: Place) -> NodeReport:
    return NodeReport(places=places, secrets=frozenset((b"s",)))


def test_only_what_every_rank_has_is_a_candidate() -> None:
    here = report(place("1", 10, 0), place("2", 20, 0), place("3", 30, 0))
    there = report(place("1", 10, 1), place("2", 20, 1))
    assert [one.step for one in candidates([here, there], 2)] == [20, 10]
    assert candidates([here, report()], 2) == []


def test_parts_of_different_snapshots_of_one_step_are_never_mixed() -> None:
    assert candidates([report(place("1", 10, 0)), report(place("2", 10, 1))], 2) == []


def test_of_two_snapshots_of_one_step_the_later_comes_first() -> None:
    both = report(*(place(token, 10, rank) for token in ("1", "2") for rank in range(2)))
    assert [one.token for one in candidates([both, both], 2)] == ["2", "1"]
