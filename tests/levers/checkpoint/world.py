"""Ranks as forks of one process that has imported torch: world.py SCENARIO FOLDER."""

import hashlib
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
from trainer import Loader  # noqa: E402

from torchett.levers.checkpoint import Checkpointer, RandomState, StateMismatch  # noqa: E402


def ranks(size: int, folder: Path, work: Callable[[int], None]) -> None:
    """Fork that many ranks with a gloo group; exit if one of them fails."""
    meeting = folder / f"store-{time.monotonic_ns()}"
    children = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1")
                store = dist.FileStore(str(meeting), size)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
                work(rank)
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    if any(codes):
        raise SystemExit(f"ranks ended with {codes}")


class State:
    """A sharded model (FSDP2) and a plain one, each with AdamW."""

    def __init__(self, size: int, rank: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(1)
        self.rank, self.size = rank, size
        self.sharded, self.plain = (
            torch.nn.Sequential(torch.nn.Linear(12, 30), torch.nn.Tanh(), torch.nn.Linear(30, 7))
            for _ in range(2)
        )
        fully_shard(self.sharded, mesh=init_device_mesh("cpu", (size,)))
        self.optimizers = [
            torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (self.sharded, self.plain)
        ]
        self.values: dict[str, Any] = {
            "sharded": self.sharded,
            "plain": self.plain,
            "optimizer_of_sharded": self.optimizers[0],
            "optimizer_of_plain": self.optimizers[1],
            "rng": RandomState(),
            "loader": Loader(),
            "table": self._table(),
        }

    def _table(self) -> Any:
        """Rows of a table, as TorchRec shards them: a ShardedTensor, not a DTensor."""
        from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards

        rows = 12 // self.size
        values = torch.arange(12.0 * 5).view(12, 5)[self.rank * rows : (self.rank + 1) * rows]
        shard = Shard.from_tensor_and_offsets(
            values.clone(), shard_offsets=[self.rank * rows, 0], rank=self.rank
        )
        return init_from_local_shards([shard], 12, 5)

    def step(self, number: int) -> None:
        batch = torch.randn(12, 12, generator=torch.Generator().manual_seed(number))
        self.sharded(batch.chunk(self.size)[self.rank]).square().mean().backward()
        self.plain(batch).square().mean().backward()  # the same on every rank
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def rows(self) -> torch.Tensor:
        (shard,) = self.values["table"].local_shards()
        tensor: torch.Tensor = shard.tensor
        return tensor

    def digest(self) -> str:
        sha = hashlib.sha256()
        for name in ("sharded", "plain", "optimizer_of_sharded", "optimizer_of_plain"):
            state = self.values[name].state_dict()
            tensors = (
                [state[key] for key in sorted(state)]
                if "state" not in state
                else [one[key] for one in state["state"].values() for key in sorted(one)]
            )
            for tensor in tensors:
                whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
                sha.update(whole.detach().contiguous().flatten().view(torch.uint8).numpy())
        return sha.hexdigest()


def reshard(folder: Path) -> None:
    """Written on 4 ranks by upload processes, read on 4, 1, 2 and 3."""
    where = folder / "checkpoints"

    def write(rank: int) -> None:
        state = State(4, rank)
        ckpt = Checkpointer(where, every=2, upload="process")
        assert ckpt.restore(state.values) == 0
        for step in range(5):
            state.step(step)
            ckpt.step(step, state.values)
        truth = state.digest()
        if rank == 0:
            (folder / "truth").write_text(truth)
        ckpt.close()
        assert not ckpt.errors, ckpt.errors
        assert ckpt.durable == {"local": 4}, ckpt.durable

    ranks(4, folder, write)
    for size in (1, 2, 3):

        def read(rank: int, size: int = size) -> None:
            state = State(size, rank)
            ckpt = Checkpointer(where, every=1000, upload="thread")
            with pytest.raises(StateMismatch, match=f"4 ranks, and this job has {size}") as told:
                ckpt.restore(state.values)
            if rank == 0:
                print("refused:", told.value)
            state = State(size, rank)
            rows = state.rows().clone()
            state.rows().zero_()
            assert ckpt.restore(state.values, skip=["loader"]) == 5
            assert state.rows().equal(rows)
            assert state.digest() == (folder / "truth").read_text()
            print(f"rank {rank} of {size}: same as on 4", flush=True)
            state.step(5)
            ckpt.close(final=False)

        ranks(size, folder, read)


def rank_errors(folder: Path) -> None:
    """A disk that is full on rank 1, then an upload process that is killed."""
    where = folder / "checkpoints"

    def work(rank: int) -> None:
        state = State(2, rank)
        ckpt = Checkpointer(where, every=1000, upload="process")
        ckpt.restore(state.values)
        state.step(0)
        ckpt.step(0, state.values)
        state.values["odd"] = (lambda: 0) if rank == 1 else 0  # cannot be pickled, on rank 1
        ckpt.save(0, state.values)
        ckpt.fence()
        assert ckpt._met is not None
        assert ckpt._met.saves.wait(120)
        began = time.monotonic()
        while not ckpt.errors and time.monotonic() - began < 10:
            time.sleep(0.01)
        assert time.monotonic() - began < 2.0, "not heard within 2 s"
        assert "rank 1" in ckpt.errors[0], ckpt.errors
        assert not list(where.glob("step-????????"))
        dist.barrier()
        if rank == 0:
            print("heard on all ranks:", ckpt.errors[0], flush=True)
        state.values.pop("odd")
        state.step(1)
        before = ckpt.upload_pid
        assert before is not None
        ckpt.save(1, state.values)
        if rank == 1:  # in the middle of it: the other rank's process waits for this one
            os.kill(before, signal.SIGKILL)
        ckpt.fence()
        assert ckpt._met.saves.wait(120)
        while ckpt._met.ranks.count("generation") == 0:
            time.sleep(0.01)
        dist.barrier()
        state.step(2)
        ckpt.save(2, state.values)
        ckpt.fence()
        assert ckpt._met.saves.wait(120)
        assert ckpt.durable == {"local": 2}, ckpt.errors
        if rank == 0:
            print("saved by the new process", flush=True)
        ckpt.close(final=False)

    ranks(2, folder, work)


class Odd:
    """A state that cannot be had on one rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def state_dict(self) -> dict[str, Any]:
        if self._rank == 0:
            raise ValueError("no state here")
        return {"x": torch.ones(3)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def odd(folder: Path) -> None:
    """A rank whose first state cannot be had keeps nobody waiting, and can be saved later."""

    def work(rank: int) -> None:
        model = torch.nn.Linear(3, 3)
        values: dict[str, Any] = {"model": model, "odd": Odd(rank)}
        ckpt = Checkpointer(folder / "checkpoints", every=1000, upload="thread")
        ckpt.step(0, values)
        ckpt.save(1, values)
        ckpt.fence()
        assert ckpt.wait(60.0)
        assert ckpt.durable == {}
        dist.barrier()
        del values["odd"]
        ckpt.save(2, values, wait=True)
        assert ckpt.durable == {"local": 2}, ckpt.errors
        print(f"rank {rank} went on", flush=True)
        ckpt.close(final=False)

    ranks(2, folder, work)


class Tables:
    """An optimizer of whole tables, as TorchRec deals them out: each rank names its own only."""

    def __init__(self, rank: int) -> None:
        self.sums = {f"table_{t}": torch.zeros(5) for t in (rank, rank + 2)}

    def state_dict(self) -> dict[str, Any]:
        return {"state": dict(self.sums)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["state"].keys() == self.sums.keys(), f"given {[*state['state']]}"
        self.sums = state["state"]


class Late:
    """Something that has no state before it has begun."""

    def __init__(self) -> None:
        self.learned: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.learned)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learned = dict(state)


def apart(folder: Path) -> None:
    """What each rank names for itself comes back to it, and to nobody else."""

    def write(rank: int) -> None:
        tables, late = Tables(rank), Late()
        for name, sums in tables.sums.items():
            sums.fill_(int(name[-1]) + 1)
        late.learned = {"best": 7}
        ckpt = Checkpointer(folder / "checkpoints", every=1000, upload="thread")
        ckpt.save(0, {"tables": tables, "late": late}, wait=True)
        ckpt.close(final=False)

    def read(rank: int) -> None:
        tables, late = Tables(rank), Late()
        ckpt = Checkpointer(folder / "checkpoints", every=1000, upload="thread")
        assert ckpt.restore({"tables": tables, "late": late}) == 1
        assert {name: int(sums[0]) for name, sums in tables.sums.items()} == {
            f"table_{t}": t + 1 for t in (rank, rank + 2)
        }
        assert late.learned == {"best": 7}
        print(f"rank {rank} has its own", flush=True)
        ckpt.close(final=False)

    ranks(2, folder, write)
    ranks(2, folder, read)


def early(folder: Path) -> None:
    """What is saved before the upload processes are ready is safe before they are."""
    never = folder / "python"
    never.write_text("#!/bin/sh\nexec sleep 600\n")
    never.chmod(0o755)

    def work(rank: int) -> None:
        sys.executable = str(never)
        state = State(2, rank)
        ckpt = Checkpointer(folder / "checkpoints", every=1000)
        ckpt.restore(state.values)
        state.step(0)
        ckpt.step(0, state.values)
        ckpt.save(0, state.values, wait=True)
        assert ckpt.durable == {"local": 0}, ckpt.errors
        assert ckpt.upload_pid is not None
        print("safe", flush=True)
        ckpt.close(final=False)

    ranks(2, folder, work)


def late(folder: Path) -> None:
    """A rank that uploads long after the other (LATE_S; gloo's patience was 120 s)."""
    late_s = float(os.environ.get("LATE_S", "3"))

    def work(rank: int) -> None:
        state = State(2, rank)
        ckpt = Checkpointer(folder / "checkpoints", every=1000, upload="process")
        ckpt.restore(state.values)
        state.step(0)
        ckpt.step(0, state.values)
        assert ckpt._met is not None
        while not ckpt._met.uploader.is_ready():
            time.sleep(0.05)
        ckpt.save(0, state.values, wait=True)
        if rank == 1:
            collect = ckpt._met.snapshots.take
            ckpt._met.snapshots.take = lambda *a: (time.sleep(late_s), collect(*a))[1]  # type: ignore
        ckpt.save(1, state.values, wait=True)
        assert not ckpt.errors, ckpt.errors
        assert ckpt.durable == {"local": 1}
        print("durable", flush=True)
        dist.barrier()
        ckpt.close(final=False)

    ranks(2, folder, work)


def keys(folder: Path) -> None:
    """What ranks tell each other through the store is deleted when all have read it."""

    def work(rank: int) -> None:
        state = State(2, rank)
        ckpt = Checkpointer(folder / "checkpoints", every="auto", upload="thread")
        ckpt.restore(state.values)
        ckpt.step(0, state.values)
        assert ckpt._met is not None
        assert ckpt._met.schedule.auto is not None
        ckpt._met.schedule.auto.interval_s = lambda: 0.05  # type: ignore[method-assign]
        held = []
        for step in range(1, 61):
            state.step(step)
            ckpt.step(step, state.values)
            if step % 10 == 0:
                ckpt.save(step, state.values, wait=True)
                dist.barrier()
                time.sleep(1.2)  # keys go twice a second
                held.append(ckpt._met.ranks.store.num_keys())
                dist.barrier()
        assert max(held[2:]) <= held[1] + 6, held
        print("keys", held, flush=True)
        ckpt.close(final=False)

    ranks(2, folder, work)


def flush(folder: Path) -> None:
    """Each rank copies its own files to the second tier; rank 0 commits."""
    from torchett.levers.checkpoint.stored.catalog import entries, verify
    from torchett.levers.checkpoint.stored.storage import open_storage
    from torchett.levers.checkpoint.upload import commit

    near, far = folder / "near", folder / "far"
    copied: list[str] = []
    copy_file = commit.copy_file

    def spy(source: Any, name: str, target: Any, place: str, file: str, told: Any) -> None:
        copied.append(file)
        copy_file(source, name, target, place, file, told)

    commit.copy_file = spy

    def work(rank: int, upload: Any, step: int) -> None:
        state = State(2, rank)
        ckpt = Checkpointer(near, every=1000, remote=far, upload=upload)
        ckpt.restore(state.values)
        state.step(0)
        ckpt.step(0, state.values)
        ckpt.save(step, state.values)
        ckpt.close()
        assert not ckpt.errors, ckpt.errors
        if rank == 0:
            assert ckpt.durable == {"local": step, "remote": step}, ckpt.durable
        if upload == "thread":
            assert copied, "a rank copied nothing"
            own = {f"__{rank}_0.distcp", *([".metadata"] if rank == 0 else [])}
            assert set(copied) == own, copied

    for step, upload in ((5, "thread"), (7, "process")):
        ranks(2, folder, lambda rank, upload=upload, step=step: work(rank, upload, step))
        newest = entries(open_storage(far))[0]
        assert newest.step == step
        assert verify(newest) == []
        print("flushed", flush=True)


if __name__ == "__main__":
    scenarios = {
        "flush": flush,
        "keys": keys,
        "reshard": reshard,
        "rank_errors": rank_errors,
        "odd": odd,
        "apart": apart,
        "early": early,
        "late": late,
    }
    scenarios[sys.argv[1]](Path(sys.argv[2]))
