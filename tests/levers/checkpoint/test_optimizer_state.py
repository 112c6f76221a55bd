"""A fresh optimizer is restored to the state that was saved, and goes on as if never stopped."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer import Training  # noqa: F401  (nothing is recorded of these tests)

from torchett.levers.checkpoint import Checkpointer, StateMismatch
from torchett.levers.checkpoint.state import optimizer_state as blanks

Make = Callable[[Any], torch.optim.Optimizer]


class Signs(torch.optim.Optimizer):
    """One that torch does not know: state made in its first step, of another shape."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["means"] = torch.zeros(p.shape[0])
                state["means"].add_(p.grad.flatten(1).mean(1) if p.dim() > 1 else p.grad)
                p.sub_(group["lr"] * torch.sign(p.grad) * state["means"].mean())


class Subclass(torch.optim.AdamW):
    """Stock but for its name, and so for what it may do in a step."""


optim = torch.optim
MAKES: dict[str, Make] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, lr=0.1),
    "Adam tensor lr": lambda p: optim.Adam(p, lr=torch.tensor(0.1)),
    "Adam foreach": lambda p: optim.Adam(p, lr=0.1, foreach=True),
    "AdamW fused": lambda p: optim.AdamW(p, lr=0.1, fused=True),
    "AdamW foreach amsgrad": lambda p: optim.AdamW(p, lr=0.1, foreach=True, amsgrad=True),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
    "NAdam": lambda p: optim.NAdam(p, lr=0.1),
    "ASGD": lambda p: optim.ASGD(p, lr=0.1),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.1),
    "of one's own": Signs,
    "subclass": Subclass,
}
FALLS_BACK = {"Adafactor", "of one's own", "subclass"}


class Job:
    """Two groups, one of them with settings of its own."""

    def __init__(self, make: Make, width: int = 9) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(5, width), torch.nn.Linear(width, 2))
        groups = [{"params": part.parameters()} for part in self.model]
        self.optimizer = make(groups)
        self.state: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}

    def train(self, steps: range) -> None:
        for step in steps:
            batch = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
            self.model(batch).square().sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def told(self) -> list[Any]:
        """Everything: weights, states and settings, with types, shapes and devices."""
        return list(_plain([p.detach() for p in self.model.parameters()])) + list(
            _plain(self.optimizer.state_dict())
        )


def _plain(value: Any, name: str = "") -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield name, value.dtype, value.device, value.requires_grad, value.tolist()
    elif isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            yield from _plain(inner, f"{name}.{key}")
    else:
        yield name, type(value), value


def saved(where: Path, job: Job) -> None:
    ckpt = Checkpointer(where, every=1000)
    ckpt.save(2, job.state, wait=True)
    ckpt.close(final=False)
    assert not ckpt.errors


def restored(where: Path, job: Job, **options: Any) -> None:
    ckpt = Checkpointer(where, every=1000)
    try:
        assert ckpt.restore(job.state, **options) == 3
    finally:
        ckpt.close(final=False)


@pytest.mark.parametrize("name", MAKES)
def test_an_optimizer_is_restored_and_goes_on_bit_by_bit(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(MAKES[name])
    job.train(range(3))
    job.optimizer.param_groups[1]["weight_decay"] = 0.01
    saved(tmp_path, job)
    steps: list[Any] = []
    really = blanks.idle_step
    monkeypatch.setattr(blanks, "idle_step", lambda o: (steps.append(o), really(o)))
    fresh = Job(MAKES[name])
    generators = torch.get_rng_state()
    restored(tmp_path, fresh)
    assert torch.equal(torch.get_rng_state(), generators)
    assert bool(steps) == (name in FALLS_BACK)
    assert fresh.told() == job.told()
    assert all(p.grad is None for p in fresh.model.parameters())
    for one in (job, fresh):
        one.train(range(3, 6))
    assert fresh.told() == job.told()


@pytest.mark.parametrize("name", ["SGD momentum", "AdamW fused"])
def test_a_weight_that_was_never_trained_has_no_state_afterwards(tmp_path: Path, name: str) -> None:
    job, fresh = Job(MAKES[name]), Job(MAKES[name])
    job.model[0].requires_grad_(False)
    job.train(range(3))
    assert len(job.optimizer.state) == 2
    saved(tmp_path, job)
    restored(tmp_path, fresh)
    assert [*fresh.optimizer.state] == [*fresh.model[1].parameters()]


def test_states_take_the_type_of_the_weights_they_are_restored_to(tmp_path: Path) -> None:
    job, fresh = Job(MAKES["Adam"]), Job(MAKES["Adam"])
    job.train(range(3))
    saved(tmp_path, job)
    fresh.model.bfloat16()
    restored(tmp_path, fresh)
    for p, state in fresh.optimizer.state.items():
        assert p.dtype == state["exp_avg"].dtype == torch.bfloat16
        assert state["step"].dtype == torch.float32


def test_a_checkpoint_without_the_optimizer_leaves_it_fresh(tmp_path: Path) -> None:
    job, fresh = Job(MAKES["Adam"]), Job(MAKES["Adam"])
    job.train(range(3))
    job.state.pop("optimizer")
    saved(tmp_path, job)
    with pytest.raises(StateMismatch, match="optimizer"):
        restored(tmp_path, fresh)
    restored(tmp_path, fresh, strict=False)
    assert not fresh.optimizer.state


def test_states_of_other_shapes_are_refused(tmp_path: Path) -> None:
    job = Job(MAKES["Adam"])
    job.train(range(3))
    saved(tmp_path, job)
    wider = Job(MAKES["Adam"], width=10)
    with pytest.raises(StateMismatch, match="does not fit"):
        restored(tmp_path, wider, skip=["model"])
