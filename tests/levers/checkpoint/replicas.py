"""What all ranks hold alike is copied once a node: replicas.py SCENARIO FOLDER [RANKS]."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["ETT_DISABLE"] = "1"
import pytest
import torch
import torch.distributed as dist

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parent))
from world import ranks  # noqa: E402

from torchett.levers.checkpoint import Checkpointer  # noqa: E402

WIDTH = 300  # weights of 360 kB


class Training:
    """A model in DDP with AdamW; `values` is its state."""

    def __init__(self, rank: int) -> None:
        torch.manual_seed(7)
        self.rank = rank
        self.model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.values: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}

    def step(self, number: int) -> None:
        seed = torch.Generator().manual_seed(100 * number + self.rank)
        self.model(torch.randn(4, WIDTH, generator=seed)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def tensors(self) -> list[torch.Tensor]:
        states = [self.optimizer.state[p] for p in self.model.parameters()]
        held = [state[name] for state in states for name in sorted(state)]
        return [t.detach().clone() for t in (*self.model.parameters(), *held)]


def settle(ckpt: Checkpointer) -> None:
    """Wait until the last snapshot is whole on every rank."""
    assert ckpt._met is not None
    assert ckpt._met.tier is not None
    ckpt._met.snapshots.wait()
    while not ckpt._met.tier.is_settled_here:
        time.sleep(0.001)
    dist.barrier()


def of_all(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def staged(ckpt: Checkpointer) -> int:
    """Bytes that all ranks have copied for the last snapshot."""
    assert ckpt._met is not None
    assert ckpt._met.tier is not None
    newest = max(ckpt._met.tier._taken.values(), key=lambda taken: taken.number)
    return sum(of_all(sum(tensor.nbytes for tensor in newest.snapshot.tensors)))


def held(ckpt: Checkpointer) -> int:
    """Bytes of shared memory that all ranks hold for copies."""
    assert ckpt._met is not None
    return sum(of_all(sum(arena.size for arena in ckpt._met.snapshots._arenas.values())))


def begin(folder: Path, rank: int, **settings: Any) -> tuple[Training, Checkpointer, int]:
    training = Training(rank)
    settings = {"every": 10**6, "snapshot_every": 10**6, "upload": "thread", **settings}
    ckpt = Checkpointer(folder / "checkpoints", **settings)
    return training, ckpt, ckpt.restore(training.values)


def is_same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(x.equal(y) for x, y in zip(a, b, strict=True))


def killed(folder: Path, size: int) -> None:
    """A rank is killed, its node's ranks restore from memory; then others restore from storage."""

    def lives(rank: int) -> None:
        training, ckpt, first = begin(folder, rank, snapshot_every=2)
        assert first == 0
        for step in range(5):
            training.step(step)
            ckpt.step(step, training.values)
            settle(ckpt)
            if step == 3:
                torch.save(training.tensors(), folder / f"truth-{rank}")
        state = sum(tensor.nbytes for tensor in training.tensors())
        total, memory = staged(ckpt), held(ckpt)
        assert state <= total < 1.1 * state, (total, state)
        assert memory < 1.1 * 3 * state, (memory, state)
        dist.barrier()
        if rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)  # as the elastic agent ends the others

    def restores(rank: int, count: int, tier: str, keep: bool) -> None:
        training, ckpt, first = begin(folder, rank)
        assert (first, ckpt._restored_tier) == (4, tier), (first, ckpt._restored_tier)
        assert is_same(training.tensors(), torch.load(folder / "truth-0")), "other bits"
        if keep:
            ckpt.save(3, training.values, wait=True)
            assert ckpt.durable == {"local": 3}, ckpt.errors
        ckpt.close(final=False)
        print(f"rank {rank} of {count}: same, from {tier}", flush=True)

    with pytest.raises(SystemExit, match="-9"):
        ranks(size, folder, lives)
    truths = [torch.load(folder / f"truth-{rank}") for rank in range(size)]
    assert all(is_same(truth, truths[0]) for truth in truths)
    ranks(size, folder, lambda rank: restores(rank, size, "memory", True))
    for other in {1, 2, 3} - {size}:
        ranks(other, folder, lambda rank, n=other: restores(rank, n, "durable", False))


def outcome(ckpt: Checkpointer, step: int, values: dict[str, Any]) -> str | None:
    ckpt.save(step, values)
    ckpt.fence()
    ckpt.wait()
    assert ckpt._met is not None
    assert ckpt._met.saves.current is not None
    assert ckpt._met.saves.current.outcome is not None
    return ckpt._met.saves.current.outcome.error


def differ(folder: Path, size: int) -> None:
    """Replicas that differ from the start are not divided, and refused; each keeps its own."""

    def work(rank: int) -> None:
        weights = torch.full((50_000,), float(rank))
        ckpt = Checkpointer(folder / "checkpoints", every=1000, snapshot_every=1, upload="thread")
        ckpt.restore({"w": weights})
        ckpt.step(0, {"w": weights})
        settle(ckpt)
        error = outcome(ckpt, 1, {"w": weights})
        assert error is not None
        assert "ranks hold different tensors under the same name: w" in error, error
        settle(ckpt)
        ckpt.close(final=False)

    def restores(rank: int) -> None:
        state = {"w": torch.full((50_000,), -1.0)}
        ckpt = Checkpointer(folder / "checkpoints", every=1000, upload="thread")
        assert ckpt.restore(state) == 2
        assert ckpt._restored_tier == "memory"
        assert set(state["w"].tolist()) == {float(rank)}
        ckpt.close(final=False)
        print(f"rank {rank}: its own", flush=True)

    ranks(size, folder, work)
    ranks(size, folder, restores)


def drift(folder: Path, size: int) -> None:
    """Replicas that were divided and are not the same any more are refused when compared."""

    def work(rank: int) -> None:
        training, ckpt, _ = begin(folder, rank, upload="process")
        training.step(0)
        ckpt.step(0, training.values)
        assert outcome(ckpt, 0, training.values) is None
        assert staged(ckpt) < 1.1 * sum(tensor.nbytes for tensor in training.tensors())
        training.step(1)
        weight = next(training.model.parameters())
        with torch.no_grad():
            weight[17, 3] += rank * 1e-3
        error = outcome(ckpt, 1, training.values)
        assert error is not None
        assert "ranks hold different tensors under the same name: model.module.0" in error, error
        with torch.no_grad():
            dist.broadcast(weight, 0)
        assert outcome(ckpt, 2, training.values) is None  # the third is not compared
        assert outcome(ckpt, 3, training.values) is None
        ckpt.close(final=False)
        print(f"rank {rank}: refused", flush=True)

    ranks(size, folder, work)


def grow(folder: Path, size: int) -> None:
    """State that comes later is copied by every rank once, and divided from the next save on."""

    def work(rank: int) -> None:
        training, ckpt, _ = begin(folder, rank)
        ckpt.step(0, training.values)  # an optimizer that has not stepped has no state
        assert ckpt._met is not None
        ckpt._met.snapshots.wait()
        for step in (1, 2, 3):
            training.step(step)
            ckpt.save(step, training.values, wait=True)
            settle(ckpt)
            state = sum(tensor.nbytes for tensor in training.tensors())
            total = staged(ckpt)
            if step == 1:
                assert total > 1.5 * state, (total, state)
            else:
                assert state <= total < 1.1 * state, (total, state)
        truth = training.tensors()
        ckpt.close(final=False)
        dist.barrier()
        again, ckpt, first = begin(folder, rank, snapshot_every=None)
        assert first == 4
        assert is_same(again.tensors(), truth)
        ckpt.close(final=False)
        print(f"rank {rank}: divided", flush=True)

    ranks(size, folder, work)


def gone(folder: Path, size: int) -> None:
    """A piece that only its copier has lost is no checkpoint with a hole; the next one is whole."""

    def work(rank: int) -> None:
        large = {f"w{n}": torch.full((50_000,), float(n)) for n in range(4)}
        ckpt = Checkpointer(folder / "checkpoints", every=1000, upload="thread")
        ckpt.restore({"large": large})
        ckpt.step(0, {"large": large})
        assert outcome(ckpt, 0, {"large": large}) is None
        assert ckpt._met is not None
        owners = {i.fqn: r for i, r in ckpt._met.snapshots._division.owners.items()}
        lost = next(name for name, owner in owners.items() if owner == 1)
        if rank == 1:
            del large[lost.removeprefix("large.")]
        error = outcome(ckpt, 1, {"large": large})
        assert error is not None
        assert f"{lost} is not on the rank any more" in error, error
        time.sleep(1.0)
        dist.barrier()
        assert outcome(ckpt, 2, {"large": large}) is None
        ckpt.close(final=False)
        dist.barrier()
        if rank == 0:
            found = Checkpointer.load(folder / "checkpoints")["large"]
            assert {name: set(t.tolist()) for name, t in found.items()} == {
                f"w{n}": {float(n)} for n in range(4)
            }
            print("whole", flush=True)

    ranks(size, folder, work)


if __name__ == "__main__":
    scenarios: dict[str, Callable[[Path, int], None]] = {
        one.__name__: one for one in (killed, differ, drift, grow, gone)
    }
    scenarios[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
