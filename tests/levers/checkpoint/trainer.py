"""A small trainer whose every bit depends on its whole past: weights, states, draws, data order."""

import hashlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchett.levers.checkpoint import Checkpointer, RandomState


class Loader:
    """Batches of a shuffled order that goes on where it was."""

    def __init__(self, size: int = 64) -> None:
        self.order = torch.randperm(size, generator=torch.Generator().manual_seed(5)).tolist()
        self.position = 0

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> torch.Tensor:
        seed = self.order[self.position % len(self.order)]
        self.position += 1
        return torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Training:
    """Model, optimizer, schedule, generators and data, and the loop over them."""

    def __init__(self, width: int = 32) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(16, width),
            torch.nn.BatchNorm1d(width),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(width, 1),
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 4, 0.7)
        self.loader = Loader()
        self.state: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "rng": RandomState(),
            "loader": self.loader,
        }

    def step(self) -> None:
        self.model(next(self.loader)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()

    def run(
        self, ckpt: Checkpointer, steps: int, at: Callable[[int], None] = lambda step: None
    ) -> int:
        """Restore and train up to `steps`; the step it began with."""
        first = ckpt.restore(self.state)
        for step in range(first, steps):
            at(step)
            self.step()
            ckpt.step(step, self.state)
        return first

    def digest(self) -> str:
        """Of everything that training depends on."""
        sha = hashlib.sha256()
        for tensor in self.tensors():
            sha.update(tensor.contiguous().flatten().view(torch.uint8).numpy())
        sha.update(repr((self.scheduler.state_dict()["last_epoch"], self.loader.position)).encode())
        sha.update(bytes(torch.get_rng_state().tolist()))
        sha.update(repr(self.optimizer.param_groups[0]["lr"]).encode())
        return sha.hexdigest()

    def tensors(self) -> list[torch.Tensor]:
        found = [tensor.detach() for tensor in self.model.state_dict().values()]
        for state in self.optimizer.state_dict()["state"].values():
            found += [state[name] for name in sorted(state)]
        return [tensor.clone() for tensor in found]


def uninterrupted(steps: int) -> Training:
    training = Training()
    for _ in range(steps):
        training.step()
    return training


def in_child(work: Callable[[], None], timeout_s: float = 60.0) -> int:
    """The exit status of a fork that does this: it may die as it likes."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:
            os.write(2, f"child: {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(status)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError("the child did not end")


def flip(path: Path, at: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))
