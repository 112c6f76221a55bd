"""One record a rank, whatever processes a trainer starts."""

import subprocess
import sys
from pathlib import Path

import pytest
from trainers import environment, read, records, spans_of, steps_of, train

FILES = {"job/attempt-0/rank-0.ett"}


def files(runs: Path) -> set[str]:
    return {str(path.relative_to(runs)) for path in records(runs)}


def train_file(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script from a file, as processes that are spawned need it."""
    path = folder / "trainer.py"
    path.write_text(script)
    return subprocess.run(
        [sys.executable, str(path)],
        env=environment(folder / "runs"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_ett_disable_records_nothing(tmp_path: Path) -> None:
    """Every call works, and there is no file."""
    done = train(
        """
print(ett.init(job="off", rank=3, ranks=4))
with ett.stage("imports"), ett.blocked("data_wait"), ett.step(0), ett.step(1, count=5): pass
print(list(ett.steps([1, 2], start=7)))
ett.checkpoint_durable(1)
""",
        tmp_path / "runs",
        {"ETT_DISABLE": "1"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n[1, 2]\n", "")
    assert not (tmp_path / "runs").exists()


def test_stage_and_blocked_name_each_other_once_and_record_all_the_same(tmp_path: Path) -> None:
    """ett.stage is for start-up, ett.blocked for the loop, ett.span for both."""
    done = train(
        """
ett.init(job="job")
for _ in range(2):
    with ett.stage("evaluation"): pass
    with ett.blocked("device_init"): pass
    with ett.span("evaluation"), ett.span("device_init"), ett.stage("x-mine"): pass
""",
        tmp_path / "runs",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "torchett: 'evaluation': ett.stage is for start-up: use ett.blocked, or ett.span for both",
        "torchett: 'device_init': ett.blocked is for the training loop: use ett.stage,"
        " or ett.span for both",
    ]
    assert spans_of(read(tmp_path / "runs")).count("evaluation") == 4


def test_a_forked_child_stays_silent(tmp_path: Path) -> None:
    """
    parent  s0 ┬──────── s1
    child      └ s50 stage …       not the parent's steps
    """
    done = train(
        """
import os
ett.init(job="job")
with ett.step(0): pass
if not (child := os.fork()):
    with ett.step(50), ett.stage("x-child"): pass
    for _ in ett.steps(range(3)): pass
    ett.checkpoint_durable(50)
    assert ett.init(job="other") is None
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
with ett.step(1): pass
""",
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == FILES
    assert steps_of(tmp_path) == [0, 1]
    assert spans_of(read(tmp_path)) == ["imports"]
    assert read(tmp_path).history().checkpoints == ()


def test_a_child_forked_inside_a_span_leaves_it_to_the_parent(tmp_path: Path) -> None:
    """
    parent  ├─ preproc_creation ┬─┤ s0 s1 … s9
    child                       └───────────────┤ leaves the `with` later
    """
    done = train(
        """
import os
ett.init(job="job")
read, write = os.pipe()
with ett.stage("preproc_creation"):
    if not (child := os.fork()):
        os.read(read, 1)
if not child:
    os._exit(0)
for i in range(10):
    with ett.step(i): pass
os.write(write, b"!")
os.waitpid(child, 0)
os.kill(os.getpid(), 9)
""",
        tmp_path,
    )
    assert done.stderr == ""
    history = read(tmp_path).history()
    rows = history.rows.take(~history.rows.is_step)
    first_step = int(history.rows.t0_ns[history.rows.is_step].min())
    assert rows.t1_ns.max() <= first_step, "the span ended before the first step began"


def test_a_forked_child_that_exits_does_not_close_the_parents_record(tmp_path: Path) -> None:
    """
    parent  s0 ┬────────────── s1 ✗ killed
    child      └ sys.exit()
    """
    train(
        """
import os, sys
ett.init(job="job")
with ett.step(0): pass
if not (child := os.fork()):
    sys.exit()
os.waitpid(child, 0)
with ett.step(1): pass
os.kill(os.getpid(), 9)
""",
        tmp_path,
    )
    assert steps_of(tmp_path) == [0, 1]
    assert read(tmp_path).ledger().window.live


def test_a_spawned_daemonic_worker_stays_silent(tmp_path: Path) -> None:
    """As data loaders' workers are: they import the script and call what it calls."""
    done = train_file(
        """
import multiprocessing
import torchett as ett

def work():
    with ett.step(50): pass
    with ett.stage("x-decode"): pass

if __name__ == "__main__":
    ett.init(job="job")
    with ett.step(0): pass
    worker = multiprocessing.get_context("spawn").Process(target=work, daemon=True)
    worker.start()
    worker.join()
    assert worker.exitcode == 0
""",
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path / "runs") == FILES
    assert steps_of(tmp_path / "runs") == [0]


def test_a_process_that_is_told_its_rank_records_it(tmp_path: Path) -> None:
    """
    launcher of its own (mp.spawn): rank 0 and rank 1 are spawned processes, each with init(rank=…)
    """
    done = train_file(
        """
import multiprocessing
import torchett as ett

def work(rank):
    ett.init(job="job", rank=rank, ranks=2)
    with ett.step(rank): pass

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=work, args=(r,), daemon=bool(r)) for r in range(2)]
    for rank in ranks: rank.start()
    for rank in ranks: rank.join()
""",
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path / "runs") == FILES | {"job/attempt-0/rank-1.ett"}
    assert read(tmp_path / "runs").job.ranks == 2


@pytest.mark.parametrize("launched", [True, False])
def test_a_program_that_a_trainer_runs_does_not_claim_its_rank(
    tmp_path: Path, launched: bool
) -> None:
    """
    trainer  s0 ├─ subprocess.run(another script that uses torchett) ─┤ s1
    """
    env = {"ETT_JOB": "job"}
    if launched:
        env |= {"ETT_RUN": str(tmp_path / "job"), "ETT_ATTEMPT": "0"}
    done = train(
        """
import subprocess, sys
with ett.step(0): pass
helper = "import torchett as ett\\nwith ett.step(50): pass"
subprocess.run([sys.executable, "-c", helper], check=True)
with ett.step(1): pass
""",
        tmp_path,
        env,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == FILES
    assert steps_of(tmp_path) == [0, 1]


def test_a_data_loader_with_workers_makes_one_record(tmp_path: Path) -> None:
    """
    trainer   w═s w═s …                      tensors are good as step numbers
    workers   decode decode …  (forked, then spawned)
    """
    pytest.importorskip("torch")
    done = train_file(
        """
import torch
import torchett as ett
from torch.utils.data import DataLoader, Dataset

class Items(Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, i):
        with ett.stage("x-decode"), ett.step(50):
            return torch.tensor(i)

if __name__ == "__main__":
    ett.init(job="job")
    for context in ("fork", "spawn"):
        loader = DataLoader(Items(), num_workers=2, multiprocessing_context=context)
        start = 0 if context == "fork" else 6
        for batch in ett.steps(loader, start=start):
            pass
    with ett.step(torch.tensor(12)): pass
    ett.checkpoint_durable(torch.tensor(12))
""",
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    runs = tmp_path / "runs"
    assert files(runs) == FILES
    assert steps_of(runs) == list(range(13))
    assert set(spans_of(read(runs))) == {"imports", "get_first_batch_data", "data_wait"}
    assert [c.step for c in read(runs).history().checkpoints] == [12]
    assert read(runs).notes == []


def test_importing_torchett_imports_the_standard_library_only() -> None:
    """Nor does recording: torch, numpy, click and rich are for others to import."""
    script = """
import sys
before = set(sys.modules)
import torchett as ett
with ett.step(0): pass
ours = {"torchett", "__mp_main__"} | set(sys.stdlib_module_names)
print(sorted({name.partition(".")[0] for name in set(sys.modules) - before} - ours))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(Path("unused")) | {"ETT_DISABLE": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_recording_imports_the_standard_library_only(tmp_path: Path) -> None:
    """The whole life of a record, from init to the interpreter's exit."""
    done = train(
        """
import atexit, sys
def outsiders():
    heavy = {"torch", "numpy", "click", "rich"}
    found = {name.partition(".")[0] for name in sys.modules}
    print(sorted(found & heavy), file=sys.stderr)
atexit.register(outsiders)
ett.init(job="job")
for i in range(600):
    with ett.step(i), ett.stage("x-a"): pass
""",
        tmp_path,
    )
    assert done.stderr == "[]\n"


def test_a_loop_that_is_left_to_the_end_of_the_interpreter_says_nothing(tmp_path: Path) -> None:
    """
    s──s s──s s──          next() by hand; the generator is closed when there are no modules left
    """
    done = train(
        """
import time
turns = ett.steps(range(9))
for _ in range(3):
    next(turns); time.sleep(0.001)
""",
        tmp_path / "runs",
    )
    assert (done.returncode, done.stderr) == (0, "")
