"""Batches through the pipe: the same values, and shared memory stays shared."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import collate, worker

from torchett.levers.batches import light

BIG = light.SMALL // 4 + 1  # floats


def tensors() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "floats": torch.randn(3, 5),
        "ints": torch.arange(12).view(3, 4),
        "bools": torch.tensor([True, False]),
        "halves": torch.randn(4).bfloat16(),
        "complex": torch.randn(3, dtype=torch.complex64),
        "one": torch.tensor(7.5),
        "none": torch.empty(0, 3),
        "part": torch.arange(100)[:10],
        "transposed": torch.randn(4, 3).t(),
        "leaf": torch.randn(2, requires_grad=True),
        "sparse": torch.eye(3).to_sparse(),
        "parameter": torch.nn.Parameter(torch.randn(2)),
        "big": torch.randn(BIG),
        "words": "words",
    }


class Kinds(Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, k: int) -> dict[str, Any]:
        return tensors()


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, k: int) -> Any:
        return torch.full((3,), k), float(k), torch.full((BIG,), float(k))


class Aliases(Dataset[Any]):
    """Two views of the same numbers, and a counter that the trainer shares."""

    def __init__(self) -> None:
        self.counter = torch.zeros(1).share_memory_()

    def __len__(self) -> int:
        return 1

    def __getitem__(self, k: int) -> Any:
        numbers = torch.zeros(4)
        return numbers, numbers.view(2, 2), self.counter


@pytest.fixture(autouse=True)
def _light_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of this test have the plugin; this process does not."""
    monkeypatch.setattr(worker, "_worker_loop", worker._worker_loop)
    monkeypatch.setattr(light, "_original_loop", None)
    light.install_plugin()
    assert worker._worker_loop is light.loop


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_every_kind_of_tensor_arrives_unchanged(how: str) -> None:
    expected = tensors()
    loader = DataLoader(Kinds(), batch_size=None, num_workers=1, multiprocessing_context=how)
    for batch in loader:
        assert batch.keys() == expected.keys()
        for name, sent in expected.items():
            got = batch[name]
            if name == "words":
                assert got == sent
                continue
            assert (got.dtype, got.shape, type(got)) == (sent.dtype, sent.shape, type(sent)), name
            assert got.requires_grad == sent.requires_grad, name
            assert torch.equal(got.to_dense(), sent.to_dense()), name
        assert not batch["floats"].is_shared(), "it came in the pipe"
        assert batch["floats"].data_ptr() % 64 == 0, "and is aligned like any tensor"
        assert batch["big"].is_shared(), "it did not"
        batch["floats"].add_(1)  # it can be written to


def test_samples_are_stacked_as_by_torch() -> None:
    plain = [collate.default_collate([Samples()[k] for k in (0, 1, 2, 3)])]
    (small, numbers, big), _ = DataLoader(Samples(), batch_size=4, num_workers=1)
    for got, sent in zip((small, numbers, big), plain[0], strict=True):
        assert torch.equal(got, sent)
    assert (small.is_shared(), numbers.is_shared(), big.is_shared()) == (False, False, True)


def test_shared_tensors_stay_shared() -> None:
    dataset = Aliases()
    ((numbers, square, counter),) = DataLoader(dataset, batch_size=None, num_workers=1)
    numbers[0] = 5.0
    assert square[0, 0] == 5.0
    counter.fill_(3.0)
    assert dataset.counter == 3.0


def test_this_process_sends_as_without_the_plugin() -> None:
    list(DataLoader(Samples(), batch_size=4, num_workers=1))
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    ours.send_bytes(ForkingPickler.dumps(torch.zeros(2)))
    assert b"received" not in bytes(theirs.recv_bytes())


FULL = """
import os, signal, time
import torch
from torch.utils.data import DataLoader, Dataset
from torchett.levers.batches import light

class Batches(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, k):
        return [torch.zeros(light.SMALL // 8) for _ in range(8)]

light.install_plugin()
batches = iter(DataLoader(Batches(), batch_size=None, num_workers=1))
time.sleep(1.0)  # by then the pipe is full
print(batches._workers[0].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_with_a_full_pipe_ends_with_its_trainer() -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", FULL]
    trainer = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    pid = int(trainer.stdout.readline())
    assert trainer.wait(60) == -signal.SIGKILL
    until = time.monotonic() + 20  # torch's workers look every 5 s
    while _lives(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _lives(pid)


def _lives(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
