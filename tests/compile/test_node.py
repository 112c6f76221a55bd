"""The ranks of a node look for an archive once, and one of them publishes for all."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from torchett.compile.node import Node, Outcome
from torchett.store import BusyError


def env(rank: int, ranks: int, attempt: int = 0) -> dict[str, str]:
    return {
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "ETT_RUN": "/runs/job",
        "ETT_ATTEMPT": str(attempt),
    }


def _rank(cache: Path, rank: int, log: Path) -> None:
    def work() -> Outcome:
        with log.open("a") as file:
            file.write(f"{rank}\n")
        time.sleep(0.2)
        return Outcome(match="exact", loaded_by=os.getpid(), names=(("inductor", "a", "b"),))

    node = Node(cache, env(rank, 4))
    found = node.once(work, 30.0)
    assert found.match == "exact"
    assert found.names == (("inductor", "a", "b"),)
    if rank:
        node.hand_in(f"part of {rank}".encode())
    else:
        assert sorted(node.collect(30.0)) == [b"part of 1", b"part of 2", b"part of 3"]
        assert not node.parts.exists()


def test_four_ranks_work_once_and_hand_in_to_the_first(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    log = tmp_path / "log"
    ranks = [context.Process(target=_rank, args=(tmp_path, rank, log)) for rank in range(4)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
        assert process.exitcode == 0
    assert len(log.read_text().splitlines()) == 1


def test_the_next_attempt_looks_again(tmp_path: Path) -> None:
    seen = [
        Node(tmp_path, env(0, 2, attempt)).once(lambda a=attempt: Outcome(entries=a), 1.0).entries
        for attempt in (0, 0, 1)
    ]
    assert seen == [0, 0, 1]


def test_a_rank_does_not_wait_for_ever(tmp_path: Path) -> None:
    node = Node(tmp_path, env(0, 2))

    def slow() -> Outcome:
        with pytest.raises(BusyError):
            Node(tmp_path, env(1, 2)).once(Outcome, 0.1)
        return Outcome()

    node.once(slow, 1.0)


def test_ranks_that_never_hand_in_are_not_waited_for(tmp_path: Path) -> None:
    assert Node(tmp_path, env(0, 3)).collect(0.05) == []


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ett-cache").symlink_to(tmp_path)
    with pytest.raises((PermissionError, FileExistsError)):
        Node(tmp_path, env(0, 1)).once(Outcome, 1.0)
