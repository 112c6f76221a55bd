"""A deep learning recommendation model (DLRM): will this user click?"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class DLRMConfig:
    """The shape of a DLRM: `rows` has one entry per embedding table."""

    dense_features: int
    rows: tuple[int, ...]
    width: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]


PRESETS = {
    "tiny": DLRMConfig(
        dense_features=13,
        rows=(2_000,) * 2 + (500,) * 6,
        width=16,
        bottom=(64,),
        top=(64, 32),
    ),
    "small": DLRMConfig(
        dense_features=13,
        rows=(50_000,) * 4 + (5_000,) * 12,
        width=32,
        bottom=(256, 64),
        top=(256, 128),
    ),
    "26-small-tables": DLRMConfig(
        dense_features=13,
        rows=(40_000,) * 4 + (10_000,) * 10 + (1_000,) * 12,
        width=128,
        bottom=(512, 256),
        top=(1024, 1024, 512, 256),
    ),
    "26-table": DLRMConfig(
        dense_features=13,
        rows=(400_000,) * 4 + (100_000,) * 10 + (1_000,) * 12,
        width=128,
        bottom=(512, 256),
        top=(1024, 1024, 512, 256),
    ),
}


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers from width to width, with a ReLU between each two."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    """Dense features and bags of ids in, one logit per sample out; nothing is random.

    dense ── bottom MLP ──┐
    ids 0 ── table 0, Σ ──┼── dot product of each pair ── top MLP ── logit
    ids 1 ── table 1, Σ ──┘   (and the bottom's output)
    """

    def __init__(self, config: DLRMConfig) -> None:
        super().__init__()
        vectors = 1 + len(config.rows)
        pairs = vectors * (vectors - 1) // 2
        self.bottom = mlp(config.dense_features, *config.bottom, config.width)
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, config.width, mode="sum") for rows in config.rows
        )
        self.top = mlp(config.width + pairs, *config.top, 1)
        for rows, table in zip(config.rows, self.tables, strict=True):
            nn.init.uniform_(table.weight, -(rows**-0.5), rows**-0.5)

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
        """The logits, of shape `[batch]`; table t's bag b begins at `ids[t, offsets[t, b]]`."""
        bags = [table(ids[t], offsets[t]) for t, table in enumerate(self.tables)]
        return self.interact(dense, bags)

    def interact(self, dense: Tensor, bags: Sequence[Tensor]) -> Tensor:
        """The logits, from one vector per bag of each table."""
        x = torch.relu(self.bottom(dense))
        vectors = torch.stack([x, *bags], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        row, column = torch.tril_indices(
            vectors.shape[1], vectors.shape[1], offset=-1, device=dense.device
        )
        return self.top(torch.cat([x, products[:, row, column]], dim=1)).squeeze(1)
