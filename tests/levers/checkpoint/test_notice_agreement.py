"""Ranks agree on one step through torch's own store; here each rank is a thread."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from torchett.levers.checkpoint.preemption.agreement import Agreement

dist = pytest.importorskip("torch.distributed")


@pytest.fixture
def store() -> Any:
    return dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)


class Ranks:
    """Ranks in a loop; a collective couples their steps unless they run on their own."""

    def __init__(
        self, store: Any, world: int, *, coupled: bool = True, budget_s: float = 20, seed: int = 0
    ) -> None:
        self.agreements = [Agreement(store, r, world, budget_s=budget_s) for r in range(world)]
        self.saved: dict[int, int] = {}
        self.reached: dict[int, int] = dict.fromkeys(range(world), -1)
        self._meet = threading.Barrier(world) if coupled else None
        self._seed = seed

    def run(
        self, told: dict[int, int], steps: int = 400, first: int = 0, **dead: int
    ) -> dict[int, int]:
        """Which step each rank saved; rank r is told in step told[r], rank_3=5 dies in step 5."""
        self.saved.clear()
        threads = [
            threading.Thread(target=self._loop, args=(rank, told.get(rank), steps, first, dead))
            for rank in range(len(self.agreements))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        return dict(self.saved)

    def _loop(
        self, rank: int, told: int | None, steps: int, first: int, dead: dict[str, int]
    ) -> None:
        agreement, rng = self.agreements[rank], random.Random(f"{self._seed} {rank}")
        received = False
        for step in range(first, steps):
            if dead.get(f"rank_{rank}") == step:
                agreement.close()
                return
            time.sleep(rng.random() * 0.01)
            if step == told:
                agreement.tell()
                received = True
            if self._meet is not None:
                self._meet.wait(30)
            found = agreement.at_boundary(step, received)
            if found == step:
                self.saved[rank] = step
                return
            self.reached[rank] = step


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("coupled", [True, False])
def test_one_rank_is_told_and_all_save_the_same_step(store: Any, coupled: bool, seed: int) -> None:
    saved = Ranks(store, 3, coupled=coupled, seed=seed).run({1: 5})
    assert set(saved) == {0, 1, 2}
    assert len(set(saved.values())) == 1
    assert saved[1] >= 5


def test_all_are_told_at_once_and_save_at_once(store: Any) -> None:
    saved = Ranks(store, 3).run({0: 5, 1: 5, 2: 5})
    assert set(saved.values()) <= {5, 6}
    assert len(saved) == 3


def test_told_before_the_first_step_they_save_the_first(store: Any) -> None:
    ranks = Ranks(store, 2)
    for agreement in ranks.agreements:
        agreement.tell()
    time.sleep(0.2)
    assert ranks.run({}, first=17) == {0: 17, 1: 17}


def test_nobody_is_told_and_nobody_waits(store: Any) -> None:
    before = store.num_keys()
    ranks = Ranks(store, 2)
    assert ranks.run({}, steps=50) == {}
    assert ranks.reached == {0: 49, 1: 49}
    assert store.num_keys() == before  # a boundary leaves nothing in the store


def test_a_dead_rank_is_waited_for_no_longer_than_the_budget(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    saved = Ranks(store, 3, coupled=False, budget_s=1.0).run({0: 8}, rank_2=3)
    assert set(saved) == {0, 1}
    assert len(set(saved.values())) == 1
    assert time.monotonic() - began < 20
    assert "without word from ranks [2]" in caplog.text


def test_after_one_notice_there_can_be_another(store: Any) -> None:
    ranks = Ranks(store, 2)
    first = ranks.run({0: 5})
    second = ranks.run({1: first[0] + 10}, first=first[0] + 1)
    assert len(set(second.values())) == 1
    assert second[0] >= first[0] + 10


def test_a_lost_store_is_said_once_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            raise RuntimeError("the store is gone")

    agreement = Agreement(Broken(), 0, 2, budget_s=1.0)
    assert [agreement.at_boundary(step, step == 2) for step in range(5)] == [None] * 5
    assert caplog.text.count("cannot agree") == 1


def test_alone_there_is_nothing_to_agree_on() -> None:
    agreement = Agreement(None, 0, 1, budget_s=1.0)  # type: ignore[arg-type]
    assert agreement.at_boundary(3, False) is None
    assert agreement.at_boundary(4, True) == 4


SCRIPT = """
import os, sys, time
from torch.distributed import TCPStore
from torchett.levers.checkpoint.preemption.notice import agree, install
notice, rank = install(), int(sys.argv[1])
store = TCPStore("127.0.0.1", int(sys.argv[2]), None, False)
print("ready", flush=True)
for step in range(4000):
    time.sleep(0.01 + 0.005 * rank)
    if agree(store, rank, 2, step, notice.received()) == step:
        print("saved", step, flush=True)
        notice.leave()
        break
"""


def test_two_processes_of_which_one_is_sent_the_signal(store: Any) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(store.port)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
    ranks[0].send_signal(signal.SIGTERM)
    said = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert said[0] == said[1]
    assert said[0].startswith("saved ")
    assert [rank.returncode for rank in ranks] == [-signal.SIGTERM, 0]
