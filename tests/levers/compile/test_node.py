"""The ranks of a node search for an archive once, and one of them publishes for all."""

import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest

from torchett.levers.compile.cache.node import LoadResult, Node
from torchett.store import BusyError


def env(rank: int, ranks: int, attempt: int = 0) -> dict[str, str]:
    return {
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "ETT_RUN": "/runs/job",
        "ETT_ATTEMPT": str(attempt),
    }


def _rank(cache: Path, rank: int, log: Path) -> None:
    def work() -> LoadResult:
        with log.open("a") as file:
            file.write(f"{rank}\n")
        time.sleep(0.2)
        return LoadResult(match="exact", loaded_by=os.getpid(), names=(("inductor", "a", "b"),))

    node = Node(cache, env(rank, 4))
    found = node.once(work, 30.0)
    assert found.match == "exact"
    assert found.names == (("inductor", "a", "b"),)
    if rank:
        node.hand_in(f"part of {rank}".encode())
    else:
        assert sorted(node.collect(30.0, threading.Event())) == [
            b"part of 1",
            b"part of 2",
            b"part of 3",
        ]
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


def test_the_next_attempt_searches_again(tmp_path: Path) -> None:
    seen = [
        Node(tmp_path, env(0, 2, attempt))
        .once(lambda a=attempt: LoadResult(entries=a), 1.0)
        .entries
        for attempt in (0, 0, 1)
    ]
    assert seen == [0, 0, 1]


def test_a_rank_does_not_wait_for_ever(tmp_path: Path) -> None:
    node = Node(tmp_path, env(0, 2))

    def slow() -> LoadResult:
        with pytest.raises(BusyError):
            Node(tmp_path, env(1, 2)).once(LoadResult, 0.1)
        return LoadResult()

    node.once(slow, 1.0)


def test_ranks_that_never_hand_in_are_not_waited_for(tmp_path: Path) -> None:
    assert Node(tmp_path, env(0, 3)).collect(0.05, threading.Event()) == []


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ett-cache").symlink_to(tmp_path)
    with pytest.raises((PermissionError, FileExistsError)):
        Node(tmp_path, env(0, 1)).once(LoadResult, 1.0)


def test_a_file_that_another_rank_has_just_moved_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was moved after the folder was listed and before its stat."""
    node = Node(tmp_path, env(0, 2))
    monkeypatch.setattr(Path, "iterdir", lambda self: iter([self / ".job.json.x.part"]))
    assert node.once(lambda: LoadResult(entries=7), 1.0).entries == 7


def test_jobs_of_a_plain_torchrun_have_different_ids(tmp_path: Path) -> None:
    """They have the same run id, port and restart count, but each has a new folder of errors."""

    def rank(number: int, launch: str) -> dict[str, str]:
        file = f"/tmp/torchelastic_{launch}/none_x/attempt_0/{number}/error.json"
        names = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_ERROR_FILE": file}
        return {"LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": "2", **names}

    same = [Node(tmp_path, rank(number, "a")).parts for number in range(2)]
    assert same[0] == same[1]
    assert Node(tmp_path, rank(0, "b")).parts != same[0]
