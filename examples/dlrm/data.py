"""Synthetic clicks that a DLRM can learn: odd dense features speak for a click, even against."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

BATCH_SIZES = {"tiny": 256, "small": 1024, "26-small-tables": 8192, "26-table": 8192}
IDS_PER_BAG = 4


class Clicks(NamedTuple):
    """One batch; table t's bag b begins at `ids[t, offsets[t, b]]`."""

    dense: Tensor  # [batch, dense features]
    ids: Tensor  # [tables, batch * IDS_PER_BAG]
    offsets: Tensor  # [tables, batch]
    labels: Tensor  # [batch], 0 or 1


def click_batch(
    generator: torch.Generator, *, dense_features: int, rows: Sequence[int], batch_size: int
) -> Clicks:
    """Clicks whose bags differ in length, but not in sum: fixed shapes compile once.

    Ids follow a steep curve, as in real traffic: one eighth of a table gets half of the look-ups.
    """
    tables, ids_per_table = len(rows), batch_size * IDS_PER_BAG
    dense = torch.randn(batch_size, dense_features, generator=generator)
    popularity = torch.rand(tables, ids_per_table, generator=generator) ** 3
    ids = (popularity * torch.tensor(rows).unsqueeze(1)).long()
    cuts = torch.randint(ids_per_table + 1, (tables, batch_size - 1), generator=generator)
    offsets = torch.cat([torch.zeros(tables, 1, dtype=torch.long), cuts.sort().values], dim=1)
    chance = torch.sigmoid(dense[:, 1::2].sum(1) - dense[:, ::2].sum(1))
    return Clicks(dense, ids, offsets, torch.bernoulli(chance, generator=generator))
