"""Records shipped from many launchers to one server: how fast, and what kills lose (nothing)."""

import filecmp
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from torchett.record.flight.format import header_line
from torchett.ship.files import kind_of

GROWTH = 64 << 10
_HEADER = header_line({"attempt": 0, "rank": 0, "anchor": {"clock": "bench"}})
SHIP = [sys.executable, "-m", "torchett.cli.main", "ship"]


class Server:
    """`ett serve --fleet` in a process of its own; its pages are those of runs, or of the fleet."""

    def __init__(self, place: Path, *, fleet_pages: bool = False) -> None:
        self.fleet, self.port, self._ready_s = place / "fleet", 0, 0.0
        self._shown = [] if fleet_pages else [str(place / "ett-runs")]
        (place / "ett-runs").mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "torchett.cli.main", "serve", *self._shown]
        command += ["--fleet", str(self.fleet), "--port", str(self.port)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        self.port = int(self._process.stderr.readline().rsplit(":", 1)[1])
        self._ready_s = self._spent_s()

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def cpu_s(self) -> float:
        """CPU that it has spent since it was ready."""
        return self._spent_s() - self._ready_s

    def _spent_s(self) -> float:
        stat = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "started"
        return self._process.pid


def growth(rank: int, turn: int) -> bytes:
    """What a record grows by: half of it noise, as times are to a packer."""
    chance = random.Random(rank * 1000 + turn)
    return chance.randbytes(GROWTH // 2) + bytes(GROWTH // 2)


def ship(
    place: Path, launchers: int, ranks: int, rounds: int, compressed: bool = False
) -> dict[str, Any]:
    """MiB a second: appended by one writer, and acknowledged to launchers that ship at once.

    Compressed: as if the server were not on this machine.
    """
    runs = [place / "runs" / f"job{i}" for i in range(launchers)]
    pieces = [growth(0, turn) for turn in range(rounds)]
    spent = _sequential(place / "plain", launchers, ranks, pieces)
    for run in runs:
        (run / "attempt-0").mkdir(parents=True)
        (run / "attempts-0.jsonl").write_text('{"format": "attempts/1"}\n')
        for rank in range(ranks):
            (run / "attempt-0" / f"rank-{rank}.ett").write_bytes(_HEADER + b"".join(pieces))
    server = Server(place)
    server.start()
    try:
        command, pipes = [sys.executable, __file__], {"stdin": -1, "stdout": -1, "text": True}
        to = [server.url, "compressed" if compressed else "as it is"]
        children = [subprocess.Popen([*command, str(run), *to], **pipes) for run in runs]
        assert [child.stdout.readline() for child in children] == ["ready\n"] * launchers
        began = time.perf_counter()
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        assert [child.wait() for child in children] == [0] * launchers
        shipped = time.perf_counter() - began
        server_cpu = server.cpu_s()
    finally:
        server.kill()
    mib = launchers * ranks * rounds * GROWTH / 2**20
    identical = all(same(run, server.fleet / "runs" / "default" / run.name) for run in runs)
    return {"mib": mib, "sequential_mib_s": mib / spent, "shipped_mib_s": mib / shipped,
            "server_ms_mib": 1e3 * server_cpu / mib,
            "same": "yes" if identical else "NO"}  # fmt: skip


def _sequential(folder: Path, launchers: int, ranks: int, pieces: list[bytes]) -> float:
    """One process that writes file after file, each made durable once, as the server does."""
    folder.mkdir(parents=True)
    whole = b"".join(pieces)
    began = time.perf_counter()
    for launcher in range(launchers):
        for rank in range(ranks):
            fd = os.open(folder / f"{launcher}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(fd, whole)
            os.fdatasync(fd)
            os.close(fd)
    return time.perf_counter() - began


def kills(place: Path, count: int) -> dict[str, Any]:
    """Records grow and are shipped; the server and the shipper are killed again and again."""
    run = place / "runs" / "job"
    (run / "attempt-0").mkdir(parents=True)
    (run / "attempts-0.jsonl").write_text('{"format": "attempts/1"}\n')
    server = Server(place)
    server.start()
    chance = random.Random(1)
    command = [*SHIP, str(run), server.url, "--follow"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    shipper = subprocess.Popen(command, **quiet)
    killed = {"server": 0, "shippers": 0}
    try:
        while min(killed.values()) < count:
            deadline = time.monotonic() + chance.uniform(0.2, 1.2)
            while time.monotonic() < deadline:
                rank = chance.randrange(64)
                with (run / "attempt-0" / f"rank-{rank}.ett").open("ab") as file:
                    file.write(chance.randbytes(chance.randrange(1, 50_000)))
                time.sleep(0.01)
            if killed["server"] <= killed["shippers"]:
                server.kill()
                killed["server"] += 1
                server.start()
            else:
                shipper.kill()
                shipper.wait()
                killed["shippers"] += 1
                shipper = subprocess.Popen(command, **quiet)
        shipper.kill()
        shipper.wait()
        subprocess.run([*SHIP, str(run), server.url, "--within", "60"], check=True, **quiet)
    finally:
        shipper.kill()
        server.kill()
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    return {**killed, "mib": size / 2**20,
            "same": same(run, server.fleet / "runs" / "default" / "job")}  # fmt: skip


def same(ours: Path, theirs: Path) -> bool:
    """Whether every file that travels is the same in both, byte for byte."""

    def files(folder: Path) -> set[str]:
        found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
        return {name for name in found if kind_of(name) is not None}

    names = files(ours)
    return names == files(theirs) and all(
        filecmp.cmp(ours / name, theirs / name, shallow=False) for name in names
    )


if __name__ == "__main__":
    from torchett.ship.backlog import Backlog
    from torchett.ship.client import Server as Address
    from torchett.ship.client import Shipper

    if sys.argv[3] == "compressed":
        Address.is_here = property(lambda server: False)
    shipper_ = Shipper(Backlog(Path(sys.argv[1])), Address.of(sys.argv[2], {}))
    print("ready", flush=True)
    sys.stdin.readline()
    sys.exit(0 if shipper_.flush(300.0, time.sleep) else 1)
