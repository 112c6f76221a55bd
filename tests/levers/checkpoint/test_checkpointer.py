"""When saves come, what they cost the loop, and what is recorded of them."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer import Training, uninterrupted

from torchett.levers.checkpoint import Checkpointer, CheckpointError
from torchett.levers.checkpoint.interval.schedule import Schedule
from torchett.levers.checkpoint.staging import fence
from torchett.levers.checkpoint.staging.arena import Arena
from torchett.levers.checkpoint.stored.catalog import entries
from torchett.levers.checkpoint.stored.storage import open_storage


def steps_of(where: Path) -> list[int]:
    return [entry.step for entry in entries(open_storage(where))]


@pytest.mark.parametrize("every", [0, -3, True, "soon", "0s", "1.2.3s", ""])
def test_an_interval_that_is_none_is_refused_at_once(tmp_path: Path, every: object) -> None:
    with pytest.raises(CheckpointError, match="expected steps as 500"):
        Checkpointer(tmp_path, every=every)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"upload": "zz"}, "upload='zz': expected one of"),
        ({"on_error": "zz"}, "on_error='zz': expected one of"),
        ({"staging_memory": -1}, "staging_memory=-1: expected a number of bytes, or None"),
        ({"staging_memory": "8G"}, "staging_memory='8G': expected"),
        ({"mtbf_s": 0}, "mtbf_s=0: expected seconds above 0, or None"),
        ({"mtbf_s": float("nan")}, "mtbf_s=nan: expected"),
        ({"mtbf_s": "8h"}, "mtbf_s='8h': expected"),
        ({"keep": "x"}, "keep: last='x', expected how many"),
        ({"keep": True}, "keep: last=True, expected how many"),
        ({"keep_remote": "x"}, "keep: last='x', expected how many"),
    ],
)
def test_a_setting_that_is_none_is_refused_at_once(
    tmp_path: Path, setting: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Checkpointer(tmp_path / "c", **setting)
    assert not (tmp_path / "c").exists()


def test_seconds_become_steps_that_rank_0_names() -> None:
    schedule, other = Schedule("0.2s"), Schedule("0.2s")
    told: dict[str, str] = {}
    due = []
    for step in range(60):
        time.sleep(0.01)
        for one in (schedule, other):
            one.passed(step)
        here = schedule.due(step, lambda key, choose: told.setdefault(key, choose()))
        there = other.due(step, lambda key, choose: told[key])
        assert here == there
        if here:
            due.append(step)
            schedule.saved()
    assert 1 <= len(due) <= 5
    assert len(told) < 50  # ranks do not ask at every step


def test_auto_saves_and_remembers(tmp_path: Path) -> None:
    training = Training()
    ckpt = Checkpointer(tmp_path, every="auto")
    ckpt.restore(training.state)
    assert ckpt._met is not None
    assert ckpt._met.schedule.auto is not None
    ckpt._met.schedule.auto.interval_s = lambda: 0.05  # type: ignore[method-assign]
    for step in range(40):
        time.sleep(0.01)
        training.step()
        ckpt.step(step, training.state)
    ckpt.close()
    assert steps_of(tmp_path)[0] == 39
    assert json.loads((tmp_path / "interval.json").read_text())["clean"] is True


def test_what_a_save_costs_is_known_when_it_is_over(tmp_path: Path) -> None:
    """Not when the next one is due: that one's interval depends on it."""
    training = Training()
    ckpt = Checkpointer(tmp_path, every="auto", mtbf_s=100.0)
    ckpt.restore(training.state)
    assert ckpt._met is not None
    schedule = ckpt._met.schedule
    assert schedule.auto is not None
    assert schedule.interval_s() == 10  # a tenth of the time between failures: it will measure
    schedule._last_save_s -= 60.0
    for step in range(3):  # memory is made ready (it may be at once), a save, its cost
        training.step()
        ckpt.step(step, training.state)
        ckpt._met.snapshots.wait()
        assert ckpt.wait(60)
    assert ckpt.durable["local"] < 2
    assert schedule.auto.blocking_s is not None
    assert schedule.interval_s() < 5
    ckpt.close()


def test_until_the_first_cost_is_known_ranks_look_again_soon() -> None:
    """As it stands the next save is due after a minute."""
    schedule = Schedule("auto")
    asked: list[str] = []

    def agree(key: str, choose: Callable[[], str]) -> str:
        asked.append(key)
        return choose()

    schedule.saved()
    for step in range(400):
        schedule.passed(step)
        schedule._step_s = [0.1] * 20
        schedule.due(step, agree)
    assert len(asked) == 40  # a step takes 0.1 s: once a second


def test_too_little_memory_to_stage_still_saves_the_right_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training()
    ckpt = Checkpointer(tmp_path, every=2, staging_memory=1000)
    training.run(ckpt, 6)
    ckpt.close()
    assert not ckpt.errors
    assert "staging_memory" in caplog.text
    assert "training waited" in caplog.text
    fresh = Training()
    again = Checkpointer(tmp_path, every=1000)
    assert again.restore(fresh.state) == 6
    again.close(final=False)
    assert fresh.digest() == uninterrupted(6).digest()


def test_a_state_that_grows_is_planned_anew(tmp_path: Path) -> None:
    training = Training()
    ckpt = Checkpointer(tmp_path, every=1000)
    ckpt.restore(training.state)
    training.step()
    ckpt.step(0, training.state)
    ckpt.save(0, training.state, wait=True)
    state = {**training.state, "more": torch.arange(100_000.0)}
    ckpt.save(1, state, wait=True)
    ckpt.close(final=False)
    assert not ckpt.errors
    state["more"] = torch.zeros(100_000)
    again = Checkpointer(tmp_path, every=1000)
    assert again.restore(state) == 2
    again.close(final=False)
    assert state["more"].equal(torch.arange(100_000.0))


def test_a_compiled_optimizer_is_fenced(tmp_path: Path) -> None:
    training = Training()
    ckpt = Checkpointer(tmp_path, every=1000)
    step = torch.compile(training.optimizer.step, backend="eager")
    training.model(torch.ones(8, 16)).sum().backward()
    step()
    fence.forget()
    step()
    assert fence.guarded() >= {p.data_ptr() for p in training.model.parameters()}
    called: list[int] = []
    fence.before_next_step(lambda: called.append(1))
    step()
    assert called == [1]
    ckpt.close(final=False)


def test_an_optimizer_whose_hook_is_not_seen_is_not_trusted(tmp_path: Path) -> None:
    training = Training()
    Checkpointer(tmp_path, every=1000)
    training.step()
    assert fence.guarded()
    fence.forget()
    assert not fence.guarded()


def test_what_cannot_be_pickled_is_said_and_training_goes_on(tmp_path: Path) -> None:
    training = Training()
    training.state["odd"] = lambda: None
    ckpt = Checkpointer(tmp_path, every=1)
    for step in range(2):
        training.step()
        ckpt.step(step, training.state)
    ckpt.close(final=False)
    assert steps_of(tmp_path) == []


def test_it_all_lands_in_the_flight_record(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import torch; torch.set_num_threads(1)\n"
        "from trainer import Training\n"
        "import torchett as ett\n"
        "ett.init(job='a'); t = Training()\n"
        f"ckpt = ett.Checkpointer({str(tmp_path / 'c')!r}, every=2)\n"
        "first = ckpt.restore(t.state)\n"
        "for i in range(first, 5):\n"
        "    with ett.step(i): t.step()\n"
        "    ckpt.step(i, t.state); ckpt.wait()\n"
        "ckpt.close()\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "ETT_DISABLE"}
    env["ETT_RUNS"] = str(tmp_path / "runs")
    done = subprocess.run(
        [sys.executable, script, str(Path(__file__).parent)],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    from torchett.runs.reader import RunReader

    reader = RunReader(tmp_path / "runs" / "a").poll()
    accounts = reader.ledger().accounts
    assert {"checkpoint_restore", "checkpoint_blocked", "final_checkpoint"} <= set(accounts)
    assert {c.step for c in reader.history().checkpoints} == {1, 3, 4}
    assert "x-checkpoint_upload" not in accounts  # in the background: it takes no time


def test_the_step_to_come_is_known_before_there_is_a_model(tmp_path: Path) -> None:
    assert Checkpointer(tmp_path / "none", every=1).expected_step() == 0
    training = Training()
    with Checkpointer(tmp_path / "a", every=10**9, keep=3) as ckpt:
        for step in (3, 7):
            training.step()
            ckpt.save(step, training.state, wait=True)
    later = Checkpointer(tmp_path / "a", every=1)
    assert later.expected_step() == 8
    for file in (tmp_path / "a").glob("step-00000007/*.distcp"):
        file.write_bytes(file.read_bytes()[:-1])
    assert later.expected_step() == 8  # which is why one compares
    assert Checkpointer(tmp_path / "a", every=1).restore(Training().state) == 4


def test_a_save_that_is_due_does_not_wait_until_its_memory_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are touched and pinned after the first step; a job that compiled first is due then."""
    ready = threading.Event()
    make_ready = Arena.make_ready

    def slowly(arena: Arena, pin: bool) -> None:
        assert ready.wait(60)
        make_ready(arena, pin)

    monkeypatch.setattr(Arena, "make_ready", slowly)
    training = Training()
    ckpt = Checkpointer(tmp_path, every="0.001s")
    ckpt.restore(training.state)
    time.sleep(0.01)
    for step in range(5):
        ckpt.step(step, training.state)  # would wait for ever
    assert ckpt._met is not None
    assert not ckpt.durable
    ready.set()
    ckpt._met.snapshots.wait()
    ckpt.step(5, training.state)
    assert ckpt.wait(60)
    assert ckpt.durable["local"] == 5
    ckpt.close()


@pytest.mark.parametrize("on_gpu", [False, True])
def test_beside_a_gpu_one_rank_uploads_in_a_process_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: on_gpu)
    monkeypatch.setattr("sys.pycache_prefix", str(tmp_path / "bytecode"))
    model = torch.nn.Linear(4, 4)
    ckpt = Checkpointer(tmp_path / "checkpoints", every=1)
    ckpt.restore({"model": model})
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # there is none to copy from
    ckpt.step(0, {"model": model})
    assert (ckpt.upload_pid is not None) is on_gpu
    if on_gpu:  # and finds the bytecode that its trainer found
        environment = Path(f"/proc/{ckpt.upload_pid}/environ").read_bytes()
        assert f"PYTHONPYCACHEPREFIX={tmp_path}/bytecode".encode() in environment
    ckpt.close()
    assert not ckpt.errors
    assert ckpt.durable["local"] == 0
