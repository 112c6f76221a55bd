"""Steps of a trainer while its launcher ships and while it does not, in turn, in one job.

The process that ships is stopped and continued every few seconds. What it could not send meanwhile
it sends then, so nothing is saved by stopping it.
"""

import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from _fleet_ship import Server

WINDOW_S = 3.0
_TRAINER = """
import sys, time
import numpy as np
import torchett as ett

a = np.random.rand(220, 220)
times, over = [], time.monotonic() + float(sys.argv[2])
for step in ett.steps(range(10**9)):
    begin = time.monotonic()
    for _ in range(8):
        a @ a
    times.append((begin, time.monotonic() - begin))
    if times[-1][0] > over:
        break
np.save(sys.argv[1], np.array(times))
"""


def steps(place: Path, windows: int) -> dict[str, Any]:
    """How much longer a step takes while it is shipped, in percent: the middle of all pairs."""
    place.mkdir(parents=True)
    script, times = place / "train.py", place / "times.npy"
    script.write_text(_TRAINER)
    server = Server(place)
    server.start()
    over_s = windows * WINDOW_S + 10
    command = [sys.executable, "-m", "torchett.cli.main", "run", "--job", "job", "--ship"]
    command += [server.url, "--", sys.executable, str(script), str(times), str(over_s)]
    env = os.environ | {"ETT_RUNS": str(place / "job-runs"), "OMP_NUM_THREADS": "1",
                        "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip
    launcher = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        ships = _ship_process(launcher.pid)
        time.sleep(3)
        edges = [(time.monotonic(), False)]
        before = _cpu_s(ships)
        for window in range(windows):
            ship = window % 4 in (1, 2)  # off on on off: no side is always the later one
            os.kill(ships, signal.SIGCONT if ship else signal.SIGSTOP)
            edges.append((time.monotonic(), ship))
            time.sleep(WINDOW_S)
        edges.append((time.monotonic(), False))
        os.kill(ships, signal.SIGCONT)
        spent = _cpu_s(ships) - before
        assert launcher.wait(120) == 0
    finally:
        launcher.kill()
        server.kill()
    found = _compared(np.load(times), edges[1:])
    return {**found, "windows": windows, "core": spent / (windows * WINDOW_S)}


def _ship_process(launcher: int) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for entry in Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            if b"torchett.ship" in line and parent == launcher:
                return int(entry.name)
        time.sleep(0.1)
    raise RuntimeError("no process ships")


def _cpu_s(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def _compared(times: Any, edges: list[tuple[float, bool]]) -> dict[str, Any]:
    """Windows that follow one another, off and on, as pairs; steps' means without the slowest."""
    means = []
    for (begin, ship), (end, _) in pairwise(edges):
        mine = np.sort(times[(times[:, 0] >= begin) & (times[:, 0] < end), 1])
        means.append((ship, float(mine[: len(mine) * 9 // 10].mean()), float(mine.mean())))
    found: dict[str, Any] = {"steps": len(times), "step_ms": 1e3 * float(np.median(times[:, 1]))}
    for name, column in (("slower", 1), ("slower_all", 2)):
        ratios = []
        for one, two in zip(means[::2], means[1::2], strict=False):
            off, on = (one, two) if two[0] else (two, one)
            ratios.append(100 * (on[column] / off[column] - 1))
        draw = random.Random(1)
        middles = sorted(float(np.median(draw.choices(ratios, k=len(ratios)))) for _ in range(2000))
        found[name] = float(np.median(ratios))
        found[f"{name}_from"], found[f"{name}_to"] = middles[50], middles[-51]
    return found
