r"""How the DLRM is published: `ett publish add SPOOL --recipe examples/dlrm/publishing.py:tiny …`

A recipe rebuilds the model, gives example batches, and says how close answers must be to those of
the checkpoint. `tiny_int8` serves embeddings of a byte an element, a quarter of the bytes.
"""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from torchett.levers.publish import Parity, Recipe

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # examples/, where these are:
from dlrm.data import IDS_PER_BAG, click_batch
from dlrm.model import DLRM, PRESETS

MOST = 4096  # samples a request


def inputs_of(preset: str, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Dense features, ids and offsets of so many samples, the same ones each time."""
    config = PRESETS[preset]
    clicks = click_batch(
        torch.Generator().manual_seed(batch),
        dense_features=config.dense_features,
        rows=config.rows,
        batch_size=batch,
    )
    return clicks.dense, clicks.ids, clicks.offsets


def recipe_of(preset: str) -> Recipe:
    """The recipe of a preset's DLRM, as trained by train.py or train_ett.py."""
    config = PRESETS[preset]
    tables = len(config.rows)
    return Recipe(
        build=partial(DLRM, config),
        example=partial(inputs_of, preset),
        inputs={
            "dense": ("batch", config.dense_features),
            "ids": (tables, "ids"),
            "offsets": (tables, "batch"),
        },
        dims={"batch": (1, MOST), "ids": (1, MOST * IDS_PER_BAG)},
        parity=Parity(most=1e-5, mean=1e-6),
        rename=sharded_table_name,
    )


def sharded_table_name(name: str) -> str:
    """A tensor's name in the plain model: TorchRec's collection becomes one `nn.EmbeddingBag` each.

    tables.embedding_bags.table_3.weight  →  tables.3.weight
    """
    return name.replace("tables.embedding_bags.table_", "tables.")


def tiny() -> Recipe:
    return recipe_of("tiny")


def tiny_int8() -> Recipe:
    """Embeddings of one byte an element."""
    return replace(recipe_of("tiny"), embeddings="int8", parity=Parity(most=0.05, mean=0.01))


def small() -> Recipe:
    return recipe_of("small")


def tiny_weights() -> Recipe:
    """Weights and examples only, for a server with code of its own: nothing is compiled."""
    return replace(recipe_of("tiny"), compiled=False)
