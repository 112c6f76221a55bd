"""Rolling up on Ray, a worker killed in the middle; CPU is what the tasks themselves took."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from torchett.fleet import Fleet
from torchett.fleet.intake.rollup import roll_up, sources_of


def on_ray(folder: Path, runs: list[str], workers: int) -> dict[str, Any]:
    """Kills one of Ray's workers while it reads; CPU over all of its workers."""
    import ray

    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
    cpu, killed = {}, []
    over = threading.Event()

    def watch() -> None:
        import psutil

        began = time.monotonic()
        while not over.wait(0.05):
            for child in psutil.Process().children(recursive=True):
                try:
                    name = child.cmdline()[0] if child.cmdline() else ""
                    if name.startswith("ray::read_all"):
                        times = child.cpu_times()
                        cpu[child.pid] = max(cpu.get(child.pid, 0), times.user + times.system)
                        if not killed and time.monotonic() - began > 0.3:
                            os.kill(child.pid, signal.SIGKILL)
                            killed.append(child.pid)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        with Fleet.open(folder) as fleet:
            done = roll_up(fleet, sources_of(map(Path, runs), "default"), engine="ray")
    finally:
        over.set()
        thread.join()
        ray.shutdown()
    assert done.jobs == len(runs), done.errors
    return {"cpu": sum(cpu.values()), "killed": len(killed)}
