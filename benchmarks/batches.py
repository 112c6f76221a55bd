"""What a batch from a loader's worker costs the process that trains, as torch sends it and light.

    ./dev bench batches [--quick] [--json]

Two trainers on two cores, each busy for 5 ms a step, each with one worker (`num_workers=1`) that
makes batches of some tensors. Both ways in turn, in fresh processes; medians of the rounds. CPU:
what the training thread spends on a fetch; waits: how long it takes.

And what a large batch costs everybody else when the thread that pins batches lets it go: one thread
takes batches out of shared memory (copying them stands for pinning: no GPU is needed), another
does nothing but read the clock; the time it cannot, because the interpreter is held, counts.
"""

import statistics
import subprocess
import sys
import time
from typing import Any

from _table import Column, Report, Row, Sheet, bar, fresh, options, serve

BATCHES = [(2, 2), (3, 32), (8, 16), (8, 64), (40, 2)]  # tensors, KiB each
BUSY_S = 0.005
PINNED = [1, 9, 32]  # MiB a batch


def fetches(tensors: int, kib: int, light: bool, steps: int, beside: bool) -> Row:
    """Milliseconds a fetch, while another trainer does the same (unless this is that one)."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    if light:
        from torchett.feed.light import board

        board()
    torch.set_num_threads(1)

    class Batches(Dataset[Any]):
        def __len__(self) -> int:
            return steps

        def __getitem__(self, k: int) -> Any:
            return [torch.full((kib * 128,), k) for _ in range(tensors)]

    asked = [sys.executable, __file__, "--child", "fetches"]
    told = f'{{"tensors": {tensors}, "kib": {kib}, "light": {str(light).lower()},'
    told += f' "steps": {steps * 4}, "beside": false}}'
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    other = subprocess.Popen([*asked, told], **quiet) if beside else None
    time.sleep(3.0 if beside else 0.0)  # it has imported torch by then
    batches = iter(DataLoader(Batches(), batch_size=None, num_workers=1))
    next(batches)
    x = torch.randn(256, 256)
    waited = spent = 0.0
    for k in range(1, steps):
        until = time.perf_counter() + BUSY_S
        while time.perf_counter() < until:
            x @ x
        began, cpu = time.perf_counter(), time.thread_time()
        batch = next(batches)
        waited += time.perf_counter() - began
        spent += time.thread_time() - cpu
        assert int(batch[-1][0]) == k
    if other is not None:
        other.kill()
        other.wait()
    return {"wait_ms": waited / steps * 1e3, "cpu_ms": spent / steps * 1e3}


def held(mib: int, light: bool, batches: int) -> Row:
    """Milliseconds a batch for which no other thread can run Python while it is let go."""
    import threading

    import torch
    from torch.multiprocessing import get_context
    from torch.utils.data._utils import pin_memory as pinning

    if light:
        from torchett.feed.pinned import board

        board()
    torch.Tensor.pin_memory = torch.Tensor.clone
    torch.set_num_threads(1)  # as torch's pinning thread has it
    sys.setswitchinterval(0.0005)
    context = get_context("fork")
    queue, over = context.Queue(), context.Event()
    worker = context.Process(target=_send, args=(queue, over, mib, batches))
    worker.start()
    received = [queue.get() for _ in range(batches)]
    gaps: list[tuple[float, float]] = []
    done = False

    def read_the_clock() -> None:
        last = time.perf_counter()
        while not done:
            now = time.perf_counter()
            if now - last > 0.0002:
                gaps.append((now, now - last))
            last = now

    clock = threading.Thread(target=read_the_clock)
    clock.start()
    lost = 0.0
    while received:
        pinned = pinning.pin_memory(received[-1], None)
        began = time.perf_counter()
        received.pop()  # its last holder, as torch's loop lets it go
        time.sleep(0.003)
        lost += sum(now - max(began, now - gap) for now, gap in gaps if now > began)
        del pinned
    done = True
    clock.join()
    over.set()
    worker.join()
    return {"held_ms": lost / batches * 1e3}


def _send(queue: Any, over: Any, mib: int, batches: int) -> None:
    import torch

    for _ in range(batches):
        queue.put(torch.ones(mib << 18))
    over.wait()


def main() -> None:
    args = options(__doc__ or "").parse_args()
    rounds, steps = (1, 100) if args.quick else (3, 300)
    rows: list[Row] = []
    for tensors, kib in BATCHES:
        found: dict[bool, list[Row]] = {False: [], True: []}
        for k in range(2 * rounds):
            light = k % 2 == 1
            case = {"tensors": tensors, "kib": kib, "light": light, "steps": steps, "beside": True}
            found[light].append(fresh(fetches, **case))
        row: Row = {"batch": f"{tensors} × {kib} KiB"}
        for key in ("wait_ms", "cpu_ms"):
            for light, name in ((False, "torch"), (True, "light")):
                row[f"{name}_{key}"] = statistics.median(one[key] for one in found[light])
        row["ratio"] = row["torch_wait_ms"] / row["light_wait_ms"]
        rows.append(row)
    ms = "{:.2f}".format
    columns = [
        Column("batch", "tensors in a batch"),
        Column("torch_wait_ms", "torch waits, ms", ms),
        Column("light_wait_ms", "light", ms),
        Column("ratio", "ratio", "{:.1f}×".format),
        Column("torch_cpu_ms", "torch CPU, ms", ms),
        Column("light_cpu_ms", "light", ms),
    ]
    pinned: list[Row] = []
    for mib in PINNED:
        one: Row = {"batch": f"{mib} MiB"}
        for light, name in ((False, "torch"), (True, "light")):
            case = {"mib": mib, "light": light, "batches": 10 if args.quick else 40}
            found_ms = [fresh(held, **case)["held_ms"] for _ in range(rounds)]
            one[f"{name}_held_ms"] = statistics.median(found_ms)
        pinned.append(one)
    freed = [
        Column("batch", "a batch of"),
        Column("torch_held_ms", "torch holds the interpreter, ms", ms),
        Column("light_held_ms", "light", ms),
    ]
    report = Report("batches", [Sheet("a fetch", columns, rows), Sheet("let go", freed, pinned)])
    least = min(row["ratio"] for row in rows)
    report.bars.append(bar("light is never slower", "≥ 1", least, least >= 1, "×"))
    most = max(one["light_held_ms"] / one["torch_held_ms"] for one in pinned)
    report.bars.append(bar("light holds it for", "≤ 0.25", most, most <= 0.25, "×"))
    report.show(args.json)


if __name__ == "__main__":
    serve([fetches, held])
    main()
