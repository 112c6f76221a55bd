"""What a checkpoint costs training, in all: the call, the fence, and steps that run slower.

Every method saves the same AdamW state in the same loop; its stall is the time of all steps from
the call until the checkpoint is durable, less what as many steps take without one. Beside it: how
long until durable, against a raw write and fsync of as many bytes; and a probe that steps as soon
as the call returns and then compares what was saved bit by bit.

    python benchmarks/checkpoint.py                 on the GPU if there is one: 8 GiB of state
    python benchmarks/checkpoint.py --gib 1 --device cpu
"""

import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")
os.environ.setdefault("ETT_RUNS", tempfile.mkdtemp(prefix="ett-bench-runs-"))

START = 2  # the step of a spell at which it saves: the loop is under way by then
METHODS = (
    "nothing",
    "torch.save",
    "dcp.save",
    "dcp.async_save thread",
    "dcp.async_save process",
    "torch_checkpointing",
    "pinned copy",
    "torchett thread",
    "torchett process",
)


class Workload:
    """A transformer (GPU) or a stack of linear layers (CPU) with AdamW, of about `gib` GiB."""

    def __init__(self, gib: float, device: str) -> None:
        import torch

        torch.manual_seed(0)
        self.device = torch.device(device)
        count = gib * 2**30 / 12
        if device == "cuda":
            width = 1536
            layers = round(count / (12 * width * width))
            block = torch.nn.TransformerEncoderLayer(
                width, 12, 4 * width, 0.0, batch_first=True, norm_first=True, device=device
            )
            self.model: Any = torch.nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
            self.batch = torch.randn(20, 1024, width, device=device)
        else:
            width = 2048
            layers = max(1, round(count / (width * width)))
            self.model = torch.nn.Sequential(
                *(torch.nn.Linear(width, width) for _ in range(layers))
            )
            self.batch = torch.randn(32, width)
        fused = device == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=fused)
        self.state = {"model": self.model, "optimizer": self.optimizer}

    def forward_backward(self) -> None:
        import torch

        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = self.model(self.batch).float().square().mean()
        loss.backward()

    def step(self) -> None:
        self.forward_backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> list[Any]:
        """Weights and optimizer states, live."""
        import torch

        found = [p.detach() for p in self.model.parameters()]
        for state in self.optimizer.state.values():
            found += [v for v in state.values() if torch.is_tensor(v)]
        return found

    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors())

    def state_dict(self) -> dict[str, Any]:
        return {k: v.state_dict() for k, v in self.state.items()}


class Clock:
    """When each step ended: on the GPU by events, with at most one step run ahead."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self._gpu = work.device.type == "cuda"

    def run(self, more: Callable[[int], bool], before: Callable[[int], None]) -> list[float]:
        """Seconds of each step; `before(i)` is inside the time of step i."""
        import torch

        marks: list[Any] = [self._mark()]
        number = 0
        while more(number):
            before(number)
            self._work.step()
            marks.append(self._mark())
            if self._gpu:
                marks[-2].synchronize()
            number += 1
        if self._gpu:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]
        return [b - a for a, b in pairwise(marks)]

    def _mark(self) -> Any:
        import torch

        if not self._gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record()
        return event


class Saver:
    """A method: `save` is called in the loop, `done` says whether the checkpoint is durable."""

    cpu_s = 0.0  # of the main thread, beside the call
    durable_at = 0.0

    def save(self) -> None: ...

    def done(self) -> bool:
        return True

    def stamp(self, *_: Any) -> None:
        self.durable_at = time.perf_counter()

    def fence_s(self) -> float:
        """Seconds that the GPU or the loop waited before the next optimizer step."""
        return 0.0

    def close(self) -> None: ...


def make_saver(name: str, work: Workload, folder: Path) -> Saver:
    import torch
    import torch.distributed.checkpoint as dcp

    target = folder / name.replace(" ", "-")

    class Nothing(Saver):
        """The control: as many steps as an upload takes, and no save. Its stall is the noise."""

        def save(self) -> None:
            self.began = time.perf_counter()

        def done(self) -> bool:
            return time.perf_counter() - self.began > (6.0 if work.device.type == "cuda" else 1.0)

    class TorchSave(Saver):
        def save(self) -> None:
            folder.mkdir(exist_ok=True)
            with open(target, "wb") as file:
                torch.save(work.state_dict(), file)
                file.flush()
                os.fsync(file.fileno())

    class DcpSave(Saver):
        def save(self) -> None:
            dcp.save(work.state_dict(), checkpoint_id=target)

    class DcpAsync(Saver):
        future: Any = None

        def __init__(self) -> None:
            if name.endswith("process"):  # it needs a group even for one
                from torch.distributed import FileStore, init_process_group

                os.environ.setdefault("MASTER_ADDR", "localhost")
                path = tempfile.mktemp(prefix="ett-bench-store-")
                init_process_group("gloo", store=FileStore(path, 1), rank=0, world_size=1)

        def save(self) -> None:
            from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

            kind = AsyncCheckpointerType(name.split()[1])
            if self.future is not None:
                self.future.result()
            self.future = dcp.async_save(
                work.state_dict(), checkpoint_id=target, async_checkpointer_type=kind
            )
            self.future.add_done_callback(self.stamp)

        def done(self) -> bool:
            return bool(self.future is None or self.future.done())

        def close(self) -> None:
            if name.endswith("process"):
                torch.distributed.destroy_process_group()

    class Pinned(Saver):
        """The floor of a copy that blocks: nothing is written."""

        def __init__(self) -> None:
            gpu = work.device.type == "cuda"
            self.kept = [torch.empty_like(t, device="cpu", pin_memory=gpu) for t in work.tensors()]

        def save(self) -> None:
            torch._foreach_copy_(self.kept, work.tensors(), non_blocking=True)
            if work.device.type == "cuda":
                torch.cuda.synchronize()

    class Ours(Saver):
        number = 0

        def __init__(self) -> None:
            import torchett as ett
            from torchett.levers.checkpoint import Checkpointer
            from torchett.levers.checkpoint.staging import fence

            kind: Any = name.split()[1]
            ett.init()  # as a job does before it trains
            self.ckpt = Checkpointer(target, every=10**9, keep=1, upload=kind)
            self.ckpt.step(0, work.state)
            work.step()
            self.ckpt._met.snapshots.wait()
            if kind == "process":
                self.ckpt._met.uploader._ready.wait()  # type: ignore[union-attr]
            run, saver = fence.run, self

            def timed() -> None:
                began = time.thread_time()
                run()
                saver.cpu_s += time.thread_time() - began

            fence.run = timed

        def save(self) -> None:
            self.number += 1
            self.ckpt.save(self.number, work.state)
            threading.Thread(target=self.watch, args=(self.number,), daemon=True).start()

        def watch(self, number: int) -> None:
            while self.ckpt.durable.get("local") != number and not self.done():
                time.sleep(0.005)
            self.stamp()

        def done(self) -> bool:
            return not self.ckpt._met.saves.busy  # type: ignore[union-attr]

        def fence_s(self) -> float:
            return float(self.ckpt._met.saves.current.copy.waited_s())  # type: ignore[union-attr]

        def close(self) -> None:
            assert not self.ckpt.errors, self.ckpt.errors
            self.ckpt.close(final=False)

    class Peer(Saver):
        """meta-pytorch/torch_checkpointing, with its lock around the optimizer's step."""

        future: Any = None
        number = 0

        def __init__(self) -> None:
            from torch_checkpointing import CheckpointManager
            from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

            config = CheckpointManager.Config.with_async_save()
            # Its direct I/O fails with EINVAL, on both machines of RESULTS.md.
            config.storage_config = LocalFileSystemStorageConfig(use_direct_io=False)
            self.manager = CheckpointManager(config)
            self.manager.prewarm_staging(work.state_dict())
            self.step = work.optimizer.step
            work.optimizer.step = self.locked  # type: ignore[method-assign]

        def locked(self, *_: Any) -> None:
            with self.manager.lock():
                self.step()

        def save(self) -> None:
            self.number += 1
            folder.mkdir(parents=True, exist_ok=True)
            self.future = self.manager.save(f"{target}-{self.number}", work.state_dict())
            self.future.add_done_callback(self.stamp)

        def done(self) -> bool:
            if self.future is not None and self.future.done():
                self.future.result()  # raises what went wrong
            return bool(self.future is None or self.future.done())

        def close(self) -> None:
            work.optimizer.step = self.step  # type: ignore[method-assign]
            self.manager.close()

    if name == "torch_checkpointing":
        return Peer()
    kinds: dict[str, Any] = {"nothing": Nothing, "torch.save": TorchSave, "dcp.save": DcpSave}
    kinds["pinned copy"] = Pinned
    if name in kinds:
        return kinds[name]()
    return DcpAsync() if name.startswith("dcp") else Ours()


def measure(
    name: str, work: Workload, clock: Clock, folder: Path, rounds: int, window: int
) -> dict[str, Any]:
    """The stall of one method: the median of some rounds, each between two spells without it."""
    try:
        saver = make_saver(name, work, folder)
    except ModuleNotFoundError as error:
        return {"method": name, "error": f"not installed: {error.name or error}"}
    found: list[dict[str, float]] = []
    warm = 1 if name.startswith("dcp.async") else 0  # the others are warm once they are made
    try:
        plain = clock.run(lambda n: n < window, lambda n: None)
        for turn in range(rounds + warm):
            told = {"durable": 0.0}
            cpu = 0.0

            def before(number: int, told: dict[str, float] = told) -> None:
                nonlocal cpu
                if number == START:
                    saver.cpu_s = saver.durable_at = 0.0
                    cpu = time.thread_time()
                    told["began"] = time.perf_counter()
                    saver.save()
                    told["call"] = time.perf_counter() - told["began"]
                    cpu = time.thread_time() - cpu

            def more(number: int, told: dict[str, float] = told) -> bool:
                if number > START and not told["durable"] and saver.done():
                    at = saver.durable_at or told["began"] + told["call"]
                    told["durable"] = at - told["began"]
                    told["last"] = number + 2
                return not told["durable"] or number < told["last"]

            steps = clock.run(more, before)
            after = clock.run(lambda n: n < window, lambda n: None)
            both = plain + after
            base = statistics.fmean(both)
            plain = after
            row = {
                "stall_s": sum(steps) - len(steps) * base,
                "call_s": told["call"],
                "main_cpu_s": cpu + saver.cpu_s,
                "fence_s": saver.fence_s(),
                "durable_s": told["durable"],
                "steps": float(len(steps)),
            }
            if turn >= warm:
                found.append(row)
            noise = [1e3 * (step - base) for step in steps[START : START + 4]]
            print(
                f"  {name} round {turn}: {row} base {base:.5f} ± "
                f"{statistics.stdev(both):.5f} first {noise} ms",
                file=sys.stderr,
            )
    finally:
        saver.close()
        shutil.rmtree(folder, ignore_errors=True)
    middle = {key: statistics.median(row[key] for row in found) for key in found[0]}
    return {"method": name, **middle, "worst_stall_s": max(row["stall_s"] for row in found)}


def raw_write(size: int, folder: Path, times: int) -> float:
    """Seconds to write and fsync that many bytes, the least of some tries."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    chunk = memoryview(torch.randint(0, 255, (64 << 20,), dtype=torch.uint8).numpy())
    best = float("inf")
    for _ in range(times):
        path = folder / "raw"
        began = time.perf_counter()
        with open(path, "wb", buffering=0) as file:
            left = size
            while left > 0:
                left -= file.write(chunk[: min(left, len(chunk))])
            os.fsync(file.fileno())
        best = min(best, time.perf_counter() - began)
        path.unlink()
    return best


def race_probe(work: Workload, folder: Path, kind: Any) -> dict[str, Any]:
    """Save, change every weight as soon as the call returns, and compare what was saved."""
    import torch

    from torchett.levers.checkpoint import Checkpointer
    from torchett.levers.checkpoint.stored.catalog import entries

    ckpt = Checkpointer(folder / "probe", every=10**9, keep=1, upload=kind)
    ckpt.step(0, work.state)
    wrong, compared = 0, 0
    for number in range(1, 2):
        work.step()  # the last kernels of this step still run when the call is made
        truth = [t.detach().clone() for t in work.tensors()]
        ckpt.save(number, work.state)
        for parameter in work.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        work.optimizer.step()
        work.optimizer.zero_grad(set_to_none=True)
        ckpt._met.saves.wait()  # type: ignore[union-attr]
        assert ckpt.durable["local"] == number, ckpt.errors
        before = [t.detach().clone() for t in work.tensors()]
        from torchett.levers.checkpoint.restore.loading import load
        from torchett.levers.checkpoint.restore.prefetch import Prefetch
        from torchett.levers.checkpoint.restore.restore import stored_at
        from torchett.levers.checkpoint.store_coordinator import Alone

        entry = entries(ckpt._tiers[0])[0]
        assert entry.step == number
        load(stored_at(entry, Prefetch([], 0, 1)), work.state, Alone())
        for saved, true, later in zip(work.tensors(), truth, before, strict=True):
            compared += 1
            wrong += not torch.equal(saved, true)
            assert not torch.equal(saved, later) or saved.numel() < 2, "the probe changed nothing"
    ckpt.close(final=False)
    shutil.rmtree(folder, ignore_errors=True)
    return {"method": f"race probe {kind}", "compared": compared, "wrong": wrong}


def main() -> None:
    import torch
    from _table import Bar, Column, Report, Sheet, options

    parser = options(__doc__ or "")
    gpu = torch.cuda.is_available()
    parser.add_argument("--gib", type=float, default=8.25 if gpu else 1.0)
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the storage to measure")
    parser.add_argument("--window", type=int, help="steps without a save around each")
    parser.add_argument("--no-raw", action="store_true", help="leave the raw write out")
    parser.add_argument("--probe", nargs="*", default=["thread", "process"])
    parser.add_argument("--only", nargs="*", help="methods")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="ett-bench-"))
    if args.quick:
        args.gib, args.rounds = min(args.gib, 0.25), 1

    work = Workload(args.gib, args.device)
    clock = Clock(work)
    clock.run(lambda n: n < 3, lambda n: None)
    size = work.bytes()
    window = args.window or (15 if args.device == "cuda" else 4)
    base = statistics.fmean(clock.run(lambda n: n < window, lambda n: None))
    print(f"  {size / 2**30:.2f} GiB, step {base:.4f} s", file=sys.stderr, flush=True)
    raw = raw_write(size, folder / "raw", 1) if not args.no_raw else float("nan")
    print(f"  raw write + fsync {raw:.2f} s", file=sys.stderr, flush=True)
    rows, probes = [], []
    for name in args.only or METHODS:
        slow = name.startswith(("torch.save", "dcp.")) and args.device == "cuda"
        rounds = 1 if slow else args.rounds  # 10 to 50 s each
        try:
            rows.append(measure(name, work, clock, folder, rounds, window))
        except Exception as error:  # a peer that does not work here is a row that says so
            if name.startswith("torchett"):
                raise
            rows.append({"method": name, "error": f"{type(error).__name__}: {error}"[:80]})
    for kind in args.probe:
        probes.append(race_probe(work, folder, kind))
        print(f"  {probes[-1]}", file=sys.stderr)
    if not args.no_raw:
        raw = min(raw, raw_write(size, folder / "raw", 1))

    by = {row["method"]: row for row in rows if "stall_s" in row}
    ours = [by[n] for n in by if n.startswith("torchett")]
    stock = [by[n]["stall_s"] for n in by if n.startswith("dcp.async")]
    seconds = "{:.4f}".format
    columns = [
        Column("method", "method"),
        Column("stall_s", "total stall s", seconds),
        Column("worst_stall_s", "worst", seconds),
        Column("call_s", "call s", seconds),
        Column("fence_s", "fence s", seconds),
        Column("main_cpu_s", "main-thread CPU s", seconds),
        Column("durable_s", "durable s", "{:.2f}".format),
        Column("error", "", str),
    ]
    gib = size / 2**30
    report = Report(
        "checkpoint",
        facts={
            "state": f"{gib:.2f} GiB",
            "step": f"step {1e3 * base:.1f} ms",
            "raw": f"raw write + fsync {raw:.2f} s",
            "torch": f"torch {torch.__version__}",
            "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        },
    )
    report.sheets = [
        Sheet("methods", columns, rows),
        Sheet(
            "race probe",
            [Column("method", "probe"), Column("compared", "tensors"), Column("wrong", "wrong")],
            probes,
        ),
    ]
    if ours:
        best = min(ours, key=lambda row: row["stall_s"])
        stall, durable = best["stall_s"], min(row["durable_s"] for row in ours)
        wrong = sum(probe["wrong"] for probe in probes)
        cpu = min(row["main_cpu_s"] for row in ours) / gib
        report.bars = [
            Bar(
                "total stall",
                "≤ 10 ms (GPU)",
                f"{1e3 * stall:.1f} ms",
                stall <= 0.010 if args.device == "cuda" else None,
            ),
            Bar(
                "durable ÷ raw",
                "≤ 1.3",
                f"{durable / raw:.2f}",
                None if args.no_raw else durable <= 1.3 * raw,
            ),
            Bar("wrong tensors", "0", str(wrong), wrong == 0 if probes else None),
            Bar("main-thread CPU", "≤ 10 ms/GiB", f"{1e3 * cpu:.1f} ms/GiB", cpu <= 0.010),
        ]
        if stock:
            times = min(stock) / max(stall, 1e-4)
            report.bars.append(Bar("÷ stock async", "≥ 100×", f"{times:.0f}×", times >= 100))
    shutil.rmtree(folder, ignore_errors=True)
    report.show(args.json)


if __name__ == "__main__":
    main()
