"""Small models to publish, and recipes of them; some are wrong on purpose."""

import os

import torch
from torch import Tensor, nn

from torchett.levers.publish import Parity, Recipe


class Tied(nn.Module):
    """Input and output share one weight; a buffer and a constant are made while it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(8, 8, bias=False)
        self.out = nn.Linear(8, 8, bias=False)
        self.out.weight = self.inside.weight
        self.register_buffer("shift", torch.arange(8.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.inside(x))) + self.shift + torch.tensor([0.5])


class Bags(nn.Module):
    """One table and one linear."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(100, 16, mode="sum")
        self.top = nn.Linear(16, 4)

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        return self.top(self.table(ids, offsets))


def line(**changes: object) -> Recipe:
    """A linear layer, not compiled: quick."""
    given = {
        "build": lambda: nn.Linear(8, 2),
        "example": lambda batch: (torch.ones(batch, 8),),
        "inputs": {"x": ("batch", 8)},
        "dims": {"batch": (1, 16)},
        "compiled": False,
    }
    return Recipe(**(given | changes))


def raises() -> Recipe:
    raise OSError("no such host: features.internal")


def unbuilt() -> Recipe:
    return line(build=lambda: 1 / 0)


def other_shape() -> Recipe:
    return line(example=lambda batch: (torch.ones(batch, 9),))


def other_model() -> Recipe:
    return line(build=lambda: nn.Linear(8, 3))


def exits() -> Recipe:
    os._exit(9)


def tied(**changes: object) -> Recipe:
    return line(build=Tied, build_on="cpu", parity=Parity(most=1e-5, mean=1e-6), **changes)


def bags(**changes: object) -> Recipe:
    def example(batch: int) -> tuple[Tensor, Tensor]:
        drawn = torch.Generator().manual_seed(batch)
        ids = torch.randint(100, (batch * 3,), generator=drawn)
        return ids, torch.arange(0, batch * 3, 3)

    given = {
        "build": Bags,
        "example": example,
        "inputs": {"ids": ("ids",), "offsets": ("batch",)},
        "dims": {"batch": (1, 16), "ids": (1, 48)},
    }
    return line(**(given | changes))


def line_compiled() -> Recipe:
    return line(compiled=True)
