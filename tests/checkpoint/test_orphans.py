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

SIZE = 16_000_000

# Saves twice, and dies as soon as the second upload has begun to write.
KILLED = f"""
import glob, os, signal, sys, time
import torch
import torch.distributed as dist
from torchett.checkpoint import Checkpointer
where, meeting = sys.argv[1:]
if os.environ["WORLD_SIZE"] != "1":
    dist.init_process_group("gloo", init_method=f"file://{{meeting}}",
                            rank=int(os.environ["RANK"]), world_size=2)
state = {{"weights": torch.full(({SIZE},), 1.0)}}
ckpt = Checkpointer(where, every=1000, upload="process")
ckpt.save(0, state, wait=True)
state["weights"].fill_(2.0)
ckpt.save(1, state)
ckpt.fence()
while not glob.glob(f"{{where}}/step-*1.tmp-*/__*"):
    time.sleep(0.001)
print(ckpt.upload_pid, *sorted(os.listdir(where)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(where: Path, ranks: int) -> list[int]:
    """The uploaders' process ids: their trainers died while they wrote."""
    usual = {**os.environ, "ETT_DISABLE": "1", "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-c", KILLED, where, where.with_name("meeting")]
    trainers = [
        subprocess.Popen(command, env={**usual, "RANK": str(rank)}, stdout=subprocess.PIPE)
        for rank in range(ranks)
    ]
    pids = []
    for trainer in trainers:
        assert trainer.stdout is not None
        pid, *names = trainer.stdout.readline().decode().split()
        assert trainer.wait(60) == -signal.SIGKILL
        assert "step-00000001" not in names, "the upload was over before its trainer died"
        pids.append(int(pid))
    return pids


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_was_copied_is_finished_and_waited_for(tmp_path: Path, ranks: int) -> None:
    where = tmp_path / "checkpoints"
    uploaders = killed(where, ranks)
    state = {"weights": torch.zeros(SIZE)}
    ckpt = Checkpointer(where, every=1000)
    assert ckpt.expected_step() == 2
    assert ckpt.restore(state) == 2
    assert torch.equal(state["weights"], torch.full((SIZE,), 2.0))
    ckpt.close(final=False)
    until = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in uploaders) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(Path(f"/proc/{pid}").exists() for pid in uploaders), "they end when it is done"
    assert not at_work(open_storage(where))


def test_a_mark_that_nobody_holds_keeps_nobody_waiting(tmp_path: Path) -> None:
    mark = tmp_path / ".orphan-7-500"
    mark.touch()
    wait_for([mark])
    assert not mark.exists()
    mark.touch()
    assert Checkpointer(tmp_path, every=1000).expected_step() == 0
    assert not mark.exists()


@pytest.mark.parametrize("usual_s", [None, 3600.0])
def test_what_will_take_long_ends_with_its_trainer(tmp_path: Path, usual_s: float | None) -> None:
    hand = Hand()
    hand.take(str(tmp_path), 1)
    hand.is_done(usual_s)
    hand.take(str(tmp_path), 1)
    began = time.monotonic()
    hand.finish()
    assert time.monotonic() - began < 1.0


def test_an_upload_that_never_ends_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "_PATIENCE_S", 2.0)
    training = Training()
    hand = Hand()
    hand.take(str(tmp_path), 1)
    hand.is_done(0.1)
    hand.take(str(tmp_path), 1)
    finishing = threading.Thread(target=hand.finish)
    finishing.start()
    while not at_work(open_storage(tmp_path)):
        time.sleep(0.001)
    ckpt = Checkpointer(tmp_path, every=1000, upload="thread")
    assert ckpt.expected_step() == 2, "nobody has waited for it yet"
    assert finishing.is_alive()
    assert ckpt.restore(training.state) == 0
    ckpt.close(final=False)
    finishing.join(5)
    assert not finishing.is_alive()
    assert not at_work(open_storage(tmp_path))
