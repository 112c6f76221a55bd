"""A file system that does not answer: steps go on, nothing is lost once it does, exits do not wait.

The trainer's `os.open` and `os.write` on its run folder block, as system calls on a disk that
hangs do: the interpreter is free meanwhile. `benchmarks/hung_disk.py` does it with a real file
system (FUSE) and for a minute.
"""

import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

from player import flight, ring_of, steps_in
from trainers import environment, read, records, train

from torchett.model.accounts import NAMES
from torchett.record.clock import anchor, now_ns
from torchett.record.flight.format import (
    BLOCK,
    BLOCK_MAGIC,
    ENTRY,
    SLOTS,
    STEP,
    attempt_folder,
    header_line,
    meta,
    read_header,
)
from torchett.record.flight.ring import all_rings, read_ring
from torchett.record.flight.seal import seal, seal_left_behind
from torchett.record.recorder import Recorder
from torchett.runs.reader import RunReader

HANGS = """
import os, threading, time
answers = threading.Event()
answers.set()
for name in ("open", "write", "mkdir"):
    def patient(*args, call=getattr(os, name), **kwargs):
        mine = threading.current_thread().name == "ett-writer"
        if mine:
            answers.wait()
        return call(*args, **kwargs)
    setattr(os, name, patient)
"""


def test_steps_cost_the_same_while_the_disk_hangs_and_none_is_lost(tmp_path: Path) -> None:
    """
    s s s [ hangs: s s s s … ] s s
    """
    script = """
ett.init(job="job")
def steps(begin, end):
    took = []
    for i in range(begin, end):
        before = time.monotonic_ns()
        with ett.step(i), ett.stage(f"x-part_{i % 9}"):
            pass
        took.append(time.monotonic_ns() - before)
        time.sleep(0.0005)
    return sum(1 for t in took if t > 50_000_000), sorted(took)[len(took) // 2]
free = steps(0, 2000)
answers.clear()
hung = steps(2000, 4000)
answers.set()
time.sleep(0.2)
steps(4000, 4100)
print(hung[0], hung[1] / free[1])
"""
    done = train(HANGS + script, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    long, ratio = done.stdout.split()
    assert int(long) == 0
    assert float(ratio) < 3
    reader = read(tmp_path)
    assert steps_in(reader.history().rows) == 4100
    assert reader.notes == []


def test_a_disk_that_hangs_from_the_start_holds_nobody_up(tmp_path: Path) -> None:
    """
    [ hangs: ett.init() s s s … ] s s exit
    """
    script = """
answers.clear()
before = time.monotonic()
folder = ett.init(job="job")
took = time.monotonic() - before
for i in range(3000):
    with ett.step(i): pass
there = os.path.exists(folder)
answers.set()
time.sleep(0.2)
print(took < 3, there, os.path.isabs(folder))
"""
    done = train(HANGS + script, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True False True\n", "")
    reader = read(tmp_path)
    assert steps_in(reader.history().rows) == 3000
    assert reader.notes == []


def test_an_exit_waits_two_seconds_and_the_ring_keeps_the_rest(tmp_path: Path) -> None:
    """
    s s s [ hangs: s s s exit      a reader finds the rest in shared memory, and seals it
    """
    script = """
ett.init(job="job")
for i in range(1000):
    with ett.step(i): pass
time.sleep(0.3)
answers.clear()
for i in range(1000, 6000):
    with ett.step(i), ett.stage("x-late"): pass
print(time.monotonic())
"""
    done = train(HANGS + script, tmp_path)
    assert time.monotonic() - float(done.stdout) < 8
    assert (done.returncode, done.stderr) == (0, "")
    (log,) = records(tmp_path)
    ring = ring_of(log)
    reader = read(tmp_path)
    assert steps_in(reader.history().rows) == 6000
    assert reader.notes == []
    assert reader.ledger().accounts["x-late"] > 0
    assert [flight.exit is not None for flight in reader.flights] == [True]
    assert not ring.exists(), "the reader has sealed it"


def test_a_rank_killed_before_its_log_was_made_gets_one(tmp_path: Path) -> None:
    """
    [ hangs: ett.init() s s s ✗ ]     the next attempt on this host makes the log from the ring
    """
    script = """
answers.clear()
ett.init(job="job")
for i in range(500):
    with ett.step(i): pass
os.kill(os.getpid(), 9)
"""
    before = set(all_rings())
    train(HANGS + script, tmp_path)
    assert records(tmp_path) == []
    (ring,) = [path for path in set(all_rings()) - before if str(tmp_path) in str(_run(path))]
    (tmp_path / "job").mkdir()
    seal_left_behind(tmp_path / "job")
    assert not ring.exists()
    reader = read(tmp_path)
    assert steps_in(reader.history().rows) == 500
    assert reader.notes == []


def _run(path: Path) -> object:
    ring = read_ring(path)
    return ring and next((fact["run"] for fact in ring.notes() if "run" in fact), None)


def test_what_a_killed_rank_left_is_sealed_by_the_next_attempt(tmp_path: Path) -> None:
    """
    attempt 0  s s s ✗
    attempt 1            opens its record: attempt 0's ring goes into its log
    """
    train(
        "import os\nett.init(job='job')\nwith ett.step(0): pass\nos.kill(os.getpid(), 9)", tmp_path
    )
    (log,) = records(tmp_path)
    ring = ring_of(log)
    assert ring.exists()
    train("import time\nett.init(job='job')\ntime.sleep(2)", tmp_path, {"ETT_ATTEMPT": "1"})
    assert not ring.exists()
    assert steps_in(read(tmp_path).history().rows) == 1


def test_a_ring_that_is_written_is_not_sealed(tmp_path: Path) -> None:
    """Not even where its process cannot be seen: its lock says that it lives."""
    writer = flight(tmp_path / "job")
    seal_left_behind(tmp_path / "job")
    RunReader(tmp_path / "job").poll()
    assert writer.ring_path.exists()


def test_a_record_of_the_first_format_is_read_and_sealed(tmp_path: Path) -> None:
    """
    rank-0.ett   {"format":"flight/1",…}        rank-0.live   block ┊ 512 entries, beside the log
    """
    here, began = anchor(), now_ns()
    folder = attempt_folder(tmp_path / "job", 0)
    folder.mkdir(parents=True)
    facts = {"job": "job", "attempt": 0, "restart": 0, "rank": 0, "ranks": 1, "pid": 1}
    facts |= {"began_ns": began, "anchor": here.to_json(), "accounts": NAMES}
    first = header_line(facts).replace(b"flight/2", b"flight/1")
    body = first.rpartition(b', "crc": ')[0]
    log = folder / "rank-0.ett"
    log.write_bytes(body + b', "crc": %d}\n' % zlib.crc32(body))
    ring = bytearray(4096 + 512 * ENTRY.size)
    BLOCK.pack_into(ring, 0, BLOCK_MAGIC, 1, 512, 1, 0)
    for i in range(300):
        t0 = began + i * 1000
        ENTRY.pack_into(ring, 4096 + i * ENTRY.size, t0, t0, t0 + 900, i, meta(STEP), i + 1)
    log.with_suffix(".live").write_bytes(ring)
    assert read_header(log.read_bytes().splitlines(keepends=True)[0])["format"] == "flight/1"
    before = RunReader(tmp_path / "job").poll()
    assert steps_in(before.history().rows) == 300
    assert before.notes == []
    seal(log, here, now_ns())
    assert not log.with_suffix(".live").exists()
    after = RunReader(tmp_path / "job").poll()
    assert steps_in(after.history().rows) == 300
    assert after.notes == []
    assert after.ledger().accounts == before.ledger().accounts


def test_entries_that_nobody_folded_are_dropped_and_counted(tmp_path: Path) -> None:
    """
    │ overwritten: dropped, unattributed │ the newest ring full │
    """
    writer = flight(tmp_path / "job")
    recorder = Recorder(writer)
    fold, writer.wake = writer.fold, lambda: None
    writer.fold = lambda settled=0: None  # type: ignore[method-assign]
    for i in range(SLOTS + 5000):
        with recorder.step(i):
            pass
    writer.fold = fold  # type: ignore[method-assign]
    writer.fold()
    recorder.close({"exit_ns": 0})
    reader = RunReader(tmp_path / "job").poll()
    assert steps_in(reader.history().rows) == SLOTS
    assert [note for note in reader.notes if " 5000 entries were dropped" in note] == reader.notes
    assert reader.notes != []


def test_threads_that_call_first_at_once_make_one_record(tmp_path: Path) -> None:
    script = """
import threading
together = threading.Barrier(8)
def work():
    together.wait()
    with ett.stage("pre_train"): pass
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    done = train(script, tmp_path, {"ETT_JOB": "job"})
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in records(tmp_path)] == ["rank-0.ett"]
    history = read(tmp_path).history()
    names = [history.accounts.names[n] for n in history.rows.account.tolist()]
    assert names.count("pre_train") == 8


def test_a_script_may_change_its_folder(tmp_path: Path) -> None:
    """Runs lie below the folder that the script began in, by a relative path."""
    (tmp_path / "elsewhere").mkdir()
    script = """
import os, torchett as ett
folder = ett.init(job="job")
os.chdir("elsewhere")
for i in range(5):
    with ett.step(i): pass
print(folder)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(Path("runs")),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(tmp_path / "runs" / "job")
    assert os.listdir(tmp_path / "runs" / "job" / "attempt-0") == ["rank-0.ett"]
    assert steps_in(RunReader(tmp_path / "runs" / "job").poll().history().rows) == 5


def test_what_came_too_early_and_too_often_is_counted_once(tmp_path: Path) -> None:
    script = """
from torchett.record import api
for i in range(130):
    api.past_span("pre_train", i, i + 1)
ett.init(job="job")
"""
    done = train(script, tmp_path)
    assert done.stderr.count("\n") == 1
    assert "30 spans and facts from before ett.init() were not kept" in done.stderr
    assert any("30 spans and facts" in note for note in read(tmp_path).notes)


def test_a_bad_step_index_is_said_once(tmp_path: Path) -> None:
    script = """
ett.init(job="job")
for _ in range(50):
    with ett.step("x"): pass
"""
    assert train(script, tmp_path).stderr.count("is not a step number") == 1
