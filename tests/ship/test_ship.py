"""A run arrives at the server byte for byte, whatever ends meanwhile; its steps within seconds."""

import filecmp
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from breaking_link import BreakingLink

from torchett.fleet import Fleet
from torchett.fleet.figures import job_report
from torchett.model.errors import RunError
from torchett.record.clock import anchor, now_ns
from torchett.record.flight.format import STEP, meta
from torchett.record.flight.writer import FlightWriter
from torchett.runs.reader import RunReader
from torchett.ship.backlog import Backlog
from torchett.ship.client import RefusedError, Server, Shipper
from torchett.ship.files import kind_of
from torchett.ship.protocol import BATCH_BYTES
from torchett.ship.ring_copy import ring_copy

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _histories import Long, Wide  # noqa: E402

ETT = [sys.executable, "-m", "torchett.cli.main"]


class Serve:
    """`ett serve --fleet` in a process of its own, which may be killed and started again."""

    def __init__(self, place: Path) -> None:
        self.fleet = place / "fleet"
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        (place / "ett-runs").mkdir(exist_ok=True)
        self.place = place

    def start(self) -> "Serve":
        command = [*ETT, "serve", str(self.place / "ett-runs"), "--fleet", str(self.fleet)]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert " on http://" in line, line
        self.port = int(line.rsplit(":", 1)[1])
        return self

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self, job: str) -> Path:
        return self.fleet / "runs" / "default" / job


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    made = Serve(tmp_path_factory.mktemp("served")).start()
    yield made
    made.kill()


def shipper(run: Path, url: str, said: list[str] | None = None) -> Shipper:
    say = (said if said is not None else []).append
    return Shipper(Backlog(run), Server.of(url, {}), say=say, timeout_s=5)


def same(ours: Path, theirs: Path) -> bool:
    """Whether every file that travels is the same in both, byte for byte."""

    def files(folder: Path) -> set[str]:
        found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
        return {name for name in found if kind_of(name) is not None}

    names = files(ours)
    assert names == files(theirs)
    return all(filecmp.cmp(ours / name, theirs / name, shallow=False) for name in names)


def test_a_run_arrives_byte_for_byte_and_once(serve: Serve, tmp_path: Path) -> None:
    run = tmp_path / "wide"
    Wide(ranks=32, attempts=3).write_records(run)
    (run / "secret.txt").write_text("not a record")
    first = shipper(run, serve.url)
    assert first.flush(20)
    assert same(run, serve.run("wide"))
    assert not (serve.run("wide") / "secret.txt").exists()
    again = shipper(run, serve.url)
    assert again.flush(20)
    log = (run / "attempts-0.jsonl").stat().st_size
    assert log <= again.sent_bytes <= log + 16  # the launcher's log, to be compared, and its beat
    assert first.sent_bytes > 10 * log


def test_the_command_says_as_json_where_the_run_is(serve: Serve, tmp_path: Path) -> None:
    run = tmp_path / "by-command"
    Wide(ranks=2, attempts=1).write_records(run)
    command = [*ETT, "ship", str(run), serve.url, "--json"]
    said = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert (said["run"], said["server"]) == ("by-command", serve.url)
    assert said["sent_bytes"] >= (run / "attempts-0.jsonl").stat().st_size
    assert same(run, serve.run("by-command"))


def test_another_run_of_that_name_is_refused(serve: Serve, tmp_path: Path) -> None:
    Long(steps=100, restarts=0).write_records(tmp_path / "a" / "gpt")
    assert shipper(tmp_path / "a" / "gpt", serve.url).flush(20)
    Long(steps=100, restarts=0).write_records(tmp_path / "b" / "gpt")
    log = tmp_path / "b" / "gpt" / "attempts-0.jsonl"
    log.write_text(log.read_text().replace('"host": "', '"host": "other'))
    with pytest.raises(RefusedError, match="another run"):
        shipper(tmp_path / "b" / "gpt", serve.url).flush(20)
    assert same(tmp_path / "a" / "gpt", serve.run("gpt"))


def test_what_grows_in_odd_pieces_arrives(serve: Serve, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    Long(steps=30_000, restarts=2).write_records(whole)
    run = tmp_path / "growing"
    sender = shipper(run, serve.url)
    for part in range(1, 8):
        for path in sorted(whole.rglob("*")):
            if path.is_file():
                target = run / path.relative_to(whole)
                target.parent.mkdir(parents=True, exist_ok=True)
                data = path.read_bytes()
                target.write_bytes(data[: len(data) * part // 7])
        sender.send()
        if part == 4:
            sender = shipper(run, serve.url)  # the old one was killed
    assert sender.flush(20)
    assert same(run, serve.run("growing"))


def test_a_server_that_is_away_for_an_hour(tmp_path: Path) -> None:
    """The clock is a number: waits are added, not slept."""
    server = Serve(tmp_path).start()
    server.kill()
    run = tmp_path / "runs" / "away"
    Long(steps=200, restarts=0).write_records(run)
    log = run / "attempt-0" / "rank-0.ett"
    said: list[str] = []
    sender = shipper(run, server.url, said)
    clock = tries = 0.0
    while clock < 3600:
        clock += max(sender.send(), 0.01)
        tries += 1
        with log.open("ab") as file:
            file.write(os.urandom(100_000))
    assert tries < 90
    assert len(said) == 1
    assert str(run) in said[0]
    kept = sum(len(piece.data) for piece in sender.backlog.batch() if not piece.replaces)
    assert kept <= BATCH_BYTES
    assert sender.backlog.left_bytes > 0  # the newest wait longest
    assert sender.backlog.batch()[0].offset == 0
    server.start()
    try:
        assert sender.flush(120, time.sleep)
        assert same(run, server.run("away"))
        assert len(said) == 1
    finally:
        server.kill()


def test_kills_of_both_sides_lose_and_double_nothing(tmp_path: Path) -> None:
    """A few here; `benchmarks/fleet.py --kills 50` does many."""
    server = Serve(tmp_path).start()
    run = tmp_path / "runs" / "killed"
    whole = tmp_path / "whole"
    Wide(ranks=64, attempts=4).write_records(whole)
    shutil.copytree(whole, run)
    command = [*ETT, "ship", str(run), server.url, "--follow"]
    try:
        for turn in range(2):
            child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            for part in range(6):
                time.sleep(0.15)
                for path in run.glob("attempt-*/rank-*.ett"):
                    with path.open("ab") as file:
                        file.write(bytes([turn, part]) * 5_000)
            if turn % 2 == 0:
                server.kill()
                server.start()
            child.kill()
            child.wait()
        assert shipper(run, server.url).flush(120, time.sleep)
        assert same(run, server.run("killed"))
    finally:
        server.kill()


def test_twenty_breaks_of_the_link_lose_and_double_nothing(serve: Serve, tmp_path: Path) -> None:
    """Half of them in the middle of a batch, half before its answer has come back."""
    run = tmp_path / "runs" / "broken"
    Wide(ranks=32, attempts=3).write_records(run)
    link = BreakingLink(serve.port, breaks=20)
    sender = shipper(run, f"http://127.0.0.1:{link.port}")
    try:
        deadline = time.monotonic() + 120
        while link.broken < 20 and time.monotonic() < deadline:
            sender.send()
            for path in run.glob("attempt-*/rank-*.ett"):
                with path.open("ab") as file:
                    file.write(os.urandom(3_000))
        assert link.broken == 20
        assert sender.flush(60, lambda _: time.sleep(0.01))
    finally:
        link.close()
    assert same(run, serve.run("broken"))


def test_a_ring_copy_holds_what_the_log_does_not(tmp_path: Path) -> None:
    run = tmp_path / "run"
    writer = FlightWriter(
        run,
        attempt=0,
        restart=0,
        rank=0,
        facts={
            "job": "run", "attempt": 0, "restart": 0, "rank": 0, "ranks": 1,
            "began_ns": now_ns(), "anchor": anchor().to_json(), "pid": os.getpid(),
        },
    )  # fmt: skip
    try:
        writer.begin(5.0)
        begin = now_ns()
        for i in range(300):
            writer.put(begin + i, begin + i, begin + i + 1, i, meta(STEP))
        copied = tmp_path / "copy"
        backlog = Backlog(run)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            pieces = {piece.name: piece.data for piece in backlog.batch()}
            if "attempt-0/rank-0.live" in pieces:
                break
        assert set(pieces) >= {"attempt-0/rank-0.ett", "attempt-0/rank-0.live"}
        for name, data in pieces.items():
            (copied / name).parent.mkdir(parents=True, exist_ok=True)
            (copied / name).write_bytes(data)
        reader = RunReader(copied, shipped=True).poll()
        assert reader.ledger().last_step == 299
        assert not [note for note in reader.notes if "dropped" in note or "not found" in note]
        assert ring_copy(tmp_path / "none", 0) is None
        assert ring_copy(copied / "attempt-0" / "rank-0.ett", 0) is None
    finally:
        writer.close({})


def test_a_step_is_in_the_fleet_within_seconds(serve: Serve, tmp_path: Path) -> None:
    """Other work on the machine makes it later: the job goes on until steps come in time."""
    script, stop = tmp_path / "train.py", tmp_path / "stop"
    script.write_text(
        "import os, time, torchett as ett\n"
        "for i in ett.steps(range(10**6)):\n"
        "    time.sleep(0.1)\n"
        "    print(i, time.time(), flush=True)\n"
        f"    if os.path.exists({str(stop)!r}):\n"
        "        break\n"
    )
    env = os.environ | {"ETT_RUNS": str(tmp_path / "runs")}
    command = [*ETT, "run", "--job", "live", "--ship", serve.url, "--label", "team=nlp"]
    job = subprocess.Popen(
        [*command, "--no-hooks", "--", sys.executable, str(script)],
        env=env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    late: list[float] = []
    ended: dict[int, float] = {}
    assert job.stdout is not None
    os.set_blocking(job.stdout.fileno(), False)
    seen, text = -1, b""
    deadline = time.monotonic() + 240
    while job.poll() is None and time.monotonic() < deadline:
        text += job.stdout.read() or b""
        *lines, text = text.split(b"\n")
        pairs = [line.split() for line in lines]
        ended |= {int(pair[0]): float(pair[1]) for pair in pairs if len(pair) == 2}
        with Fleet.open(serve.fleet) as fleet:
            try:
                found = job_report(fleet, "live")["last_step"]
            except RunError:
                found = None  # not there yet
        now = time.time()
        newest = -1 if found is None else found
        late += [now - ended[i] for i in range(seen + 1, newest + 1) if i in ended]
        seen = max(seen, newest)
        if len(late) > 20 and statistics.median(late[-20:]) <= 5.0:
            break
        time.sleep(0.1)
    stop.touch()
    assert job.wait(120) == 0
    job.stdout.close()
    assert len(late) > 20
    assert statistics.median(late[-20:]) <= 5.0
    assert same(tmp_path / "runs" / "live", serve.run("live"))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with Fleet.open(serve.fleet) as fleet:
            row = job_report(fleet, "live")
        if row["state"] == "success":
            break
        time.sleep(0.2)
    own = subprocess.run(
        [*ETT, "report", str(tmp_path / "runs" / "live"), "--json"], capture_output=True, text=True
    )
    said = json.loads(own.stdout)
    assert row["accounts"] == pytest.approx(said["accounts"], abs=1e-6)
    assert row["labels"]["team"] == "nlp"
