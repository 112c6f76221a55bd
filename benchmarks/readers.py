"""Many readers of `ett serve` while launchers ship growing runs to it: errors, memory, waiting.

    python benchmarks/readers.py [--minutes 10] [--readers 50] [--launchers 8] [--ranks 64]
        [--jobs 1500] [--quick] [--json]

A fleet of 90 days is served. Each launcher ships a run whose records grow every other second, as
`ett ship --follow` does; readers ask one page after another with a pause of one to four seconds.
The records are whole after two thirds of the time; from then on the memory must stand still. At
the end the shipped folders must be the same, byte for byte.
"""

import http.client
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _fleet_day import DayJob, write_run
from _fleet_ship import SHIP, Server, same
from _fleets import fill
from _table import Bar, Column, Report, Sheet, bar, options

PAGES = (
    "/fleet", "/fleet?team=ads&days=30", "/fleet.json", "/jobs", "/jobs?q=team%3Aads&sort=-ett",
    "/alerts", "/metrics", "/job/default/job-0", "/timeline/default/job-1",
    "/compare?a=default/job-0&b=default/job-1",
)  # fmt: skip
GROWS_EVERY_S = 2.0
_ROWS = 4000  # of a rank record, when it is whole


@dataclass(slots=True)
class Asked:
    """What readers were answered."""

    times: dict[str, list[float]] = field(default_factory=lambda: {page: [] for page in PAGES})
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Growing:
    """A run that is written elsewhere, given out piece by piece as a live one would grow."""

    def __init__(self, whole: Path, shown: Path, looks: int) -> None:
        self._shown, self._looks, self._look = shown, looks, 0
        self._bytes = {p.relative_to(whole): p.read_bytes() for p in whole.rglob("*.ett")}
        shown.mkdir(parents=True)
        (shown / "attempts-0.jsonl").write_bytes((whole / "attempts-0.jsonl").read_bytes())
        self.grow()

    def grow(self) -> None:
        self._look += 1
        for name, data in self._bytes.items():
            cuts = [len(data) * min(self._look + n, self._looks) // self._looks for n in (-1, 0)]
            path = self._shown / name
            path.parent.mkdir(exist_ok=True)
            with path.open("ab") as file:
                file.write(data[cuts[0] : cuts[1]])


def read(port: int, asked: Asked, over: threading.Event, seed: int) -> None:
    chance = random.Random(seed)
    while not over.wait(chance.uniform(1, 4)):
        page = chance.choice(PAGES)
        began = time.monotonic()
        said = ""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", page)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                said = f"{page}: {answer.status}"
        except OSError as error:
            said = f"{page}: {error!r}"
        finally:
            connection.close()
        with asked.lock:
            asked.times[page].append(time.monotonic() - began)
            if said:
                asked.errors.append(said)


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def played(folder: Path, asked_for: Any) -> tuple[Asked, list[float], float, bool]:
    """Readers and launchers at once: answers, the server's memory every ten seconds, its CPU."""
    fill(folder / "fleet", end_s=time.time(), days=90, jobs=asked_for.jobs).close()
    looks = int(60 * asked_for.minutes / GROWS_EVERY_S)
    runs = [
        _growing(folder, i, asked_for.ranks, 2 * looks // 3) for i in range(asked_for.launchers)
    ]
    server, asked, over = Server(folder, fleet_pages=True), Asked(), threading.Event()
    server.start()
    shippers = [
        subprocess.Popen([*SHIP, str(folder / "runs" / f"job-{i}"), server.url, "--follow"],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for i in range(len(runs))
    ]  # fmt: skip
    memory: list[float] = []
    try:
        _wait_for_jobs(server.port, len(runs))
        readers = [
            threading.Thread(target=read, args=(server.port, asked, over, seed), daemon=True)
            for seed in range(asked_for.readers)
        ]
        for one in readers:
            one.start()
        began = time.monotonic()
        for look in range(looks):
            for run in runs:
                run.grow()
            if look % 5 == 0:
                memory.append(resident_mib(server.pid))
            time.sleep(max(0.0, began + (look + 1) * GROWS_EVERY_S - time.monotonic()))
        over.set()
        for one in readers:
            one.join(70)
        memory.append(resident_mib(server.pid))
        spent = server.cpu_s()
        for one in shippers:
            one.terminate()
            one.wait(60)
        for i in range(len(runs)):
            command = [*SHIP, str(folder / "runs" / f"job-{i}"), server.url, "--within", "120"]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    finally:
        over.set()
        for one in shippers:
            one.kill()
        server.kill()
    identical = all(
        same(folder / "runs" / f"job-{i}", folder / "fleet" / "runs" / "default" / f"job-{i}")
        for i in range(len(runs))
    )
    return asked, memory, spent, identical


def _growing(folder: Path, number: int, ranks: int, looks: int) -> Growing:
    name = f"job-{number}"
    job = DayJob(name=name, ranks=ranks, run_s=3600, attempts=1, ends_well=True, begin_s=0,
                 labels={"team": "ads", "model": "dlrm"})  # fmt: skip
    write_run(job, folder / "whole" / name, _ROWS, live=True)
    return Growing(folder / "whole" / name, folder / "runs" / name, looks)


def _wait_for_jobs(port: int, count: int) -> None:
    """Until the last of them has a page."""
    for _ in range(300):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", f"/job/default/job-{count - 1}.json")
        if connection.getresponse().status == 200:
            return
        time.sleep(0.3)
    raise SystemExit("no shipped job has appeared")


def _by_sixths(memory: list[float]) -> str:
    cuts = [memory[len(memory) * n // 6 : len(memory) * (n + 1) // 6] for n in range(6)]
    return ", ".join(f"{max(part):.0f}" for part in cuts if part) + " MiB"


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--launchers", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=1500)
    asked_for = parser.parse_args()
    if asked_for.quick:
        asked_for.minutes, asked_for.jobs, asked_for.ranks = 0.3, 200, 4
    with tempfile.TemporaryDirectory() as made:
        asked, memory, spent, identical = played(Path(made), asked_for)
    rows = []
    for page, times in asked.times.items():
        s = sorted(times) or [0.0]
        rows.append({"page": page, "answers": len(times), "median": s[len(s) // 2],
                     "worst": s[int(0.95 * (len(s) - 1))]})  # fmt: skip
    columns = [Column("page", "page"), Column("answers", "answers", str),
               Column("median", "median s", "{:.2f}".format),
               Column("worst", "95% s", "{:.2f}".format)]  # fmt: skip
    before, after = (memory[len(memory) * n // 6 : len(memory) * (n + 1) // 6] for n in (4, 5))
    grew = max(after) / max(before)
    report = Report("readers", [Sheet("pages", columns, rows)])
    report.bars = [
        Bar("errors", "none", "; ".join(asked.errors[:3]) or "none", not asked.errors),
        Bar("shipped folders the same", "yes", "yes" if identical else "NO", identical),
        bar("memory with whole records, last sixth ÷ the one before", "≤ 1.05", grew,
            grew <= 1.05, ""),
        Bar("memory by sixths of the time", "–", _by_sixths(memory), None),
        Bar("most memory", "–", f"{max(memory):.0f} MiB", None),
        Bar("CPU of the server", "–", f"{spent:.0f} s in {60 * asked_for.minutes:.0f} s", None),
        Bar("answers", "–", str(sum(len(t) for t in asked.times.values())), None),
    ]  # fmt: skip
    report.show(asked_for.json)


if __name__ == "__main__":
    sys.exit(main())
