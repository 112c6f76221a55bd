"""A trainer that is killed goes on from the snapshot in memory, of which every byte is checked."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer import Training, in_child, uninterrupted

from torchett.levers.checkpoint import Checkpointer
from torchett.levers.checkpoint.memory import nearby


@pytest.fixture(autouse=True)
def _no_keeper_stays(tmp_path: Path) -> Iterator[None]:
    yield
    for keeper in nearby.keepers_here(str(tmp_path / "c")):
        with suppress(OSError, EOFError):
            nearby.end(keeper.name)


def live(where: Path, steps: int, how: str = "killed") -> list[dict[str, Any]]:
    """What one life said: it trains up to that many steps from where it was restored."""
    said = where.with_name("said")

    def say(fact: dict[str, Any]) -> None:
        with said.open("a") as file:
            file.write(json.dumps(fact) + "\n")

    def work() -> None:
        training = Training()
        ckpt = Checkpointer(where, every=1000, snapshot_every=3, upload="thread")
        first = ckpt.restore(training.state)
        say({"first": first, "digest": training.digest(), "tier": ckpt._restored_tier})
        for step in range(first, steps):
            training.step()
            ckpt.step(step, training.state)
            settle(ckpt)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        ckpt.close()
        say({"ended": training.digest()})

    said.unlink(missing_ok=True)
    assert in_child(work, 120.0) == (-signal.SIGKILL if how == "killed" else 0)
    return [json.loads(line) for line in said.read_text().splitlines()]


def settle(ckpt: Checkpointer) -> None:
    """Wait until the snapshot of the last step, if any, is whole."""
    assert ckpt._met is not None
    ckpt._met.snapshots.wait()
    while ckpt._met.tier is not None and not ckpt._met.tier.is_settled_here:
        time.sleep(0.001)


def test_a_killed_trainer_goes_on_from_memory_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    where = tmp_path / "c"
    (born,) = live(where, 8)
    assert born["first"] == 0
    (second,) = live(where, 14)
    assert (second["first"], second["tier"]) == (6, "memory")
    assert second["digest"] == uninterrupted(6).digest()
    third, ended = live(where, 20, "ends")
    assert (third["first"], third["tier"]) == (12, "memory")
    assert ended["ended"] == uninterrupted(20).digest()
    assert not [p for p in where.glob("step-*") if "00000019" not in p.name], "nothing before"


def test_a_killed_trainer_leaves_what_is_known_of_its_snapshots(tmp_path: Path) -> None:
    where = tmp_path / "c"
    costs = where / "snapshot-interval.json"

    def work() -> None:
        training = Training()
        ckpt = Checkpointer(where, snapshot_every="auto", upload="thread")
        ckpt.restore(training.state)
        assert ckpt._met is not None
        for step in range(3):
            training.step()
            ckpt.step(step, training.state)
            settle(ckpt)
            ckpt._met.keep(step, training.state)
            ckpt.fence()
            settle(ckpt)
        ckpt.save(3, training.state, wait=True)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work, 120.0) == -signal.SIGKILL
    known = json.loads(costs.read_text())
    assert not known["clean"], "the next attempt counts a failure"
    assert known["state"]["rate"]["exposure_s"] > 0
    assert len(known["state"]["beside_s"]) >= 1
    assert max(known["state"]["beside_s"]) > 0


def test_the_memory_is_given_back_when_the_job_has_ended(tmp_path: Path) -> None:
    where = tmp_path / "c"
    before = set(os.listdir("/dev/shm"))
    live(where, 8)
    assert nearby.keepers_here(str(where))
    live(where, 12, "ends")
    until = time.monotonic() + 10
    while nearby.any_here(str(where)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not nearby.any_here(str(where))
    mine = {name for name in set(os.listdir("/dev/shm")) - before if "snapshot" in name}
    assert not mine


def held(where: Path) -> tuple[nearby.KeeperHere, list[nearby.Held]]:
    (keeper,) = nearby.left_here(str(where))
    return keeper, sorted(keeper.snapshots, key=lambda one: one.sealed.id.token)


def flip(where: Path, which: int) -> None:
    """Change a bit of a snapshot, as bad memory does."""
    keeper, snapshots = held(where)
    id = snapshots[which].sealed.id
    sealed, buffer = nearby.mapped(keeper.name, id.token, id.rank)
    with buffer.map() as memory:
        memory[sealed.size // 2] ^= 1
    buffer.close()


def test_a_corrupt_snapshot_gives_way_to_the_one_before(tmp_path: Path) -> None:
    where = tmp_path / "c"
    live(where, 8)  # snapshots of steps 2 and 5
    assert [one.sealed.id.step for one in held(where)[1]] == [2, 5]
    flip(where, 1)
    (second,) = live(where, 8)
    assert (second["first"], second["tier"]) == (3, "memory")
    assert second["digest"] == uninterrupted(3).digest()


def test_corrupt_memory_gives_way_to_storage_and_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    where = tmp_path / "c"
    training = Training()
    ckpt = Checkpointer(where, every=1000, snapshot_every=None)
    ckpt.restore(training.state)
    training.step()
    ckpt.save(0, training.state, wait=True)
    ckpt.close(final=False)
    live(where, 8)
    flip(where, 0)
    flip(where, 1)
    fresh = Training()
    ckpt = Checkpointer(where, every=1000)
    assert ckpt.expected_step() == 6
    assert ckpt.restore(fresh.state) == 1
    assert ckpt._restored_tier == "durable"
    assert fresh.digest() == uninterrupted(1).digest()
    ckpt.close(final=False)
    assert "this node's memory has CRC" in caplog.text


def test_a_folder_that_was_emptied_begins_anew(tmp_path: Path) -> None:
    where = tmp_path / "c"
    live(where, 8)
    for path in where.iterdir():
        path.unlink()
    ckpt = Checkpointer(where, every=1000)
    assert ckpt.restore(Training().state) == 0
    ckpt.close(final=False)


def test_who_only_reads_leaves_a_running_jobs_memory_alone(tmp_path: Path) -> None:
    """Another process restores what is on storage, and drops nothing."""
    where = tmp_path / "c"
    training = Training()
    writes = Checkpointer(where, every=1000, snapshot_every=2, upload="thread")
    writes.restore(training.state)
    for step in range(6):
        training.step()
        writes.step(step, training.state)
        settle(writes)
    writes.save(5, training.state, wait=True)
    training.step()
    writes.step(7, training.state)
    keeper = nearby.keepers_here(str(where))[0]
    assert keeper.trainer_lives

    def reads() -> None:
        assert Checkpointer(where).restore(Training().state) == 6

    assert in_child(reads) == 0
    assert nearby.keepers_here(str(where))[0].snapshots
    writes.close()


def test_without_memory_for_it_there_is_no_keeper_and_one_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    where = tmp_path / "c"
    training = Training(width=512)
    size = sum(tensor.nbytes for tensor in training.tensors())  # of weights
    ckpt = Checkpointer(where, every=1000, snapshot_every=1, staging_memory=4 * size)
    ckpt.restore(training.state)
    for step in range(3):
        training.step()
        ckpt.step(step, training.state)
        settle(ckpt)
    assert ckpt._met is not None
    assert ckpt._met.tier is None
    assert not nearby.any_here(str(where))
    assert caplog.text.count("no snapshot in memory outlives its trainer") == 1
    ckpt.close()
    assert ckpt.durable["local"] == 2


def test_a_keeper_that_was_killed_is_begun_anew(tmp_path: Path) -> None:
    where = tmp_path / "c"
    training = Training()
    ckpt = Checkpointer(where, every=1000, snapshot_every=1, upload="thread")
    ckpt.restore(training.state)
    for step in range(8):
        training.step()
        ckpt.step(step, training.state)
        settle(ckpt)
        if step == 3:
            assert ckpt._met is not None
            tier = ckpt._met.tier
            assert tier is not None
            process = tier._link._process
            assert process is not None
            process.kill()
            process.wait()
    (keeper,) = nearby.keepers_here(str(where))
    assert max(one.sealed.id.step for one in keeper.snapshots) == 7
    ckpt.close()


def test_a_snapshot_is_of_one_moment(tmp_path: Path) -> None:
    """Weights that change right after the call do not reach it."""
    where = tmp_path / "c"
    weights = torch.zeros(1_000_000)
    state: dict[str, Any] = {"weights": weights}
    ckpt = Checkpointer(where, every=1000, snapshot_every=1, upload="thread")
    ckpt.restore(state)
    for step in range(5):
        weights.fill_(step)
        ckpt.step(step, state)
        weights.fill_(-1)
        settle(ckpt)
    keeper = nearby.keepers_here(str(where))[0]
    newest = max(keeper.snapshots, key=lambda one: one.sealed.id.step).sealed.id
    _, buffer = nearby.mapped(keeper.name, newest.token, 0)
    with buffer.map() as memory:
        found = torch.frombuffer(bytearray(memory[: 4 * len(weights)]), dtype=torch.float32)
    buffer.close()
    assert set(found.tolist()) == {float(newest.step)}
    ckpt.close()
