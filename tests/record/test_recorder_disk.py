"""Disks that are full, slow to come back, or not writable: training goes on, and what is lost is
counted and said.

The disk is made full by a limit on the size of files (RLIMIT_FSIZE): a write then takes what still
fits and fails after that, as on a full disk.
"""

import os
from pathlib import Path

import pytest
from player import HERE, flight, steps_in
from trainers import read, records, train

from torchett.record.flight.format import LIVE_BYTES, SLOTS
from torchett.record.recorder import Recorder
from torchett.runs.reader import RunReader

# Indices that jump cannot be folded: 48 bytes a step, so that a disk is full soon.
TRAIN = """
import os, resource, signal, time

def full(extra):
    (path,) = __import__("pathlib").Path(os.environ["ETT_RUNS"]).glob("*/*/*.ett")
    size = path.stat().st_size + extra
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def free():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)

def steps(begin, end):
    for i in range(begin, end):
        with ett.step(3 * i):
            pass

ett.init(job="full")
"""


def test_a_disk_that_was_full_for_a_while_loses_nothing(tmp_path: Path) -> None:
    """
    s s s [ full: s s s … ] s s s
    """
    done = train(TRAIN + "full(1000); steps(0, 5000); free(); steps(5000, 6000)", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    reader = read(tmp_path)
    assert steps_in(reader.history().rows) == 6000
    assert reader.notes == []
    assert reader.ledger().last_step == 3 * 5999


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_disk_that_stays_full_stops_neither_training_nor_the_account(
    tmp_path: Path, end: str
) -> None:
    """
    s s s [ full: s s s … until the end
    """
    done = train(TRAIN + f"full(1000); steps(0, 150_000); print('trained'); {end}", tmp_path)
    assert (done.stdout, done.stderr) == ("trained\n", "")
    reader = read(tmp_path)
    kept = steps_in(reader.history().rows)
    assert SLOTS <= kept < 150_000
    assert dropped(reader) == 150_001 - kept  # and the time of the imports
    assert reader.ledger().last_step == 3 * 149_999
    assert reader.ledger().accounts["unattributed"] > 0


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_a_full_disk_cost_is_counted_after_it_has_room_again(tmp_path: Path, end: str) -> None:
    """
    s s s [ full: s s s … more than is held back … ] s s s
    """
    script = f"full(1000); steps(0, 150_000); free(); time.sleep(2); steps(150_000, 151_000); {end}"
    done = train(TRAIN + script, tmp_path)
    assert done.stderr == ""
    reader = read(tmp_path)
    kept = steps_in(reader.history().rows)
    assert kept < 151_000
    assert dropped(reader) == 151_000 - kept
    assert len(reader.notes) == 1, "nothing is torn"


def dropped(reader: RunReader) -> int:
    """How many entries the reader says were dropped."""
    (note,) = [note for note in reader.notes if "dropped" in note]
    return int(note.split(": ")[1].split()[0])


@pytest.mark.parametrize("limit", [10, LIVE_BYTES - 1])
def test_a_disk_without_room_for_a_record_costs_one_warning(tmp_path: Path, limit: int) -> None:
    """The ring does not fit."""
    done = train(
        f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
for i in ett.steps(range(5)):
    with ett.stage("x-anything"):
        pass
ett.checkpoint_durable(4)
print(ett.init())
""",
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "None\n")
    assert done.stderr.count("\n") == 1
    assert "this process is not recorded" in done.stderr


def test_a_place_that_is_no_folder_costs_one_warning(tmp_path: Path) -> None:
    """ETT_RUNS names a file: nothing can be written, and training goes on."""
    (tmp_path / "file").write_text("not a folder")
    done = train("for i in ett.steps(range(3)): print(i)\nprint(ett.init())", tmp_path / "file")
    assert (done.returncode, done.stdout) == (0, "0\n1\n2\nNone\n")
    assert done.stderr.count("\n") == 1
    assert "this process is not recorded" in done.stderr
    assert (tmp_path / "file").read_text() == "not a folder"


def test_a_million_steps_stay_below_3_megabytes(tmp_path: Path) -> None:
    """
    s s s s s … 10⁶
    """
    writer = flight(tmp_path / "job", anchor=HERE)
    recorder = Recorder(writer)
    for i in range(1_000_000):
        with recorder.step(i):
            pass
    on_disk = sum(path.stat().st_size for path in writer.path.parent.iterdir())
    assert on_disk < 3_000_000
    rows = RunReader(tmp_path / "job").poll().history().rows
    assert steps_in(rows) == 1_000_000


def test_a_thousand_checkpoints_among_them_do_not_change_that(tmp_path: Path) -> None:
    """
    w═s w═s … ckpt w═s …      a span in every step, a checkpoint every 100 steps
    """
    writer = flight(tmp_path / "job", anchor=HERE)
    recorder = Recorder(writer)
    for i in recorder.steps(range(100_000), 0):
        with recorder.span("recompile"):
            pass
        if i % 100 == 99:
            with recorder.span("checkpoint_blocked"):
                recorder.checkpoint_durable(i)
    on_disk = sum(path.stat().st_size for path in writer.path.parent.iterdir())
    assert on_disk < 1_000_000
    assert steps_in(RunReader(tmp_path / "job").poll().history().rows) == 100_000


def test_a_finished_record_leaves_no_ring_behind(tmp_path: Path) -> None:
    done = train("ett.init(job='done')\nfor _ in ett.steps(range(5)): pass", tmp_path)
    assert done.returncode == 0
    (path,) = records(tmp_path)
    assert os.listdir(path.parent) == [path.name]
