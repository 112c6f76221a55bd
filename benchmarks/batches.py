"""What a batch from a loader's worker costs the process that trains, as torch sends it and light.

    ./dev bench batches [--quick] [--json]

Two trainers on two cores, each busy for 5 ms a step, each with one worker (`num_workers=1`) that
makes batches of some tensors. Both ways in turn, in fresh processes; medians of the rounds. CPU:
what the training thread spends on a fetch; waits: how long it takes.
"""

import statistics
import subprocess
import sys
import time
from typing import Any

from _table import Column, Report, Row, Sheet, bar, fresh, options, serve

BATCHES = [(2, 2), (3, 32), (8, 16), (8, 64), (40, 2)]  # tensors, KiB each
BUSY_S = 0.005


def fetches(tensors: int, kib: int, light: bool, steps: int, beside: bool) -> Row:
    """Milliseconds a fetch, while another trainer does the same (unless this is that one)."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    if light:
        from torchett.levers.batches.light import install_plugin

        install_plugin()
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
    report = Report("batches", [Sheet("a fetch", columns, rows)])
    least = min(row["ratio"] for row in rows)
    report.bars.append(bar("light is never slower", "≥ 1", least, least >= 1, "×"))
    report.show(args.json)


if __name__ == "__main__":
    serve([fetches])
    main()
