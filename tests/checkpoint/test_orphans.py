"""A trainer that is killed while its checkpoint is written: the checkpoint is finished."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from trainer import Training

from torchett.checkpoint import Checkpointer, orphans
from torchett.checkpoint.orphans import Hand, at_work, wait_for
from torchett.checkpoint.storage import open_storage

# Saves twice, and dies as soon as the second upload has begun to write.
KILLED = """
import glob, os, signal, sys, time
import torch
from torchett.checkpoint import Checkpointer
state = {"weights": torch.full((SIZE,), 1.0)}
ckpt = Checkpointer(sys.argv[1], every=1000, upload="process")
ckpt.save(0, state, wait=True)
state["weights"].fill_(2.0)
ckpt.save(1, state)
ckpt.fence()
while not glob.glob(f"{sys.argv[1]}/step-*1.tmp-*"):
    time.sleep(0.001)
print(ckpt.upload_pid, *sorted(os.listdir(sys.argv[1])), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(where: Path, size: int) -> tuple[int, list[str]]:
    """The uploader's process id, and what lay there when its trainer died."""
    env = {**os.environ, "ETT_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    code = KILLED.replace("SIZE", str(size))
    trainer = subprocess.run([sys.executable, "-c", code, where], env=env, stdout=subprocess.PIPE)
    assert trainer.returncode == -signal.SIGKILL
    pid, *names = trainer.stdout.decode().split()
    return int(pid), names


def test_what_was_copied_is_finished_and_waited_for(tmp_path: Path) -> None:
    uploader, names = killed(tmp_path, 32_000_000)
    assert "step-00000001" not in names, "the upload was over before its trainer died"
    state = {"weights": torch.zeros(32_000_000)}
    ckpt = Checkpointer(tmp_path, every=1000)
    assert ckpt.expected_step() == 2
    assert ckpt.restore(state) == 2
    assert torch.equal(state["weights"], torch.full((32_000_000,), 2.0))
    ckpt.close(final=False)
    until = time.monotonic() + 10
    while Path(f"/proc/{uploader}").exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not Path(f"/proc/{uploader}").exists(), "it ends when it is done"
    assert not at_work(open_storage(tmp_path))


def test_a_mark_that_nobody_holds_keeps_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / ".orphan-7").touch()
    began = time.monotonic()
    wait_for(at_work(open_storage(tmp_path)))
    assert time.monotonic() - began < 1.0
    assert not at_work(open_storage(tmp_path))


@pytest.mark.parametrize("usual_s", [None, 3600.0])
def test_what_will_take_long_ends_with_its_trainer(tmp_path: Path, usual_s: float | None) -> None:
    hand = Hand()
    hand.take(str(tmp_path))
    hand.is_done(usual_s)
    hand.take(str(tmp_path))
    began = time.monotonic()
    hand.finish()
    assert time.monotonic() - began < 1.0


def test_an_upload_that_never_ends_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "_PATIENCE_S", 0.3)
    hand = Hand()
    hand.take(str(tmp_path))
    hand.is_done(0.1)
    hand.take(str(tmp_path))
    finishing = threading.Thread(target=hand.finish)
    finishing.start()
    while not at_work(open_storage(tmp_path)):
        time.sleep(0.001)
    training = Training()
    ckpt = Checkpointer(tmp_path, every=1000, upload="thread")
    assert ckpt.restore(training.state) == 0
    ckpt.close(final=False)
    finishing.join(5)
    assert not finishing.is_alive()
    assert not at_work(open_storage(tmp_path))
