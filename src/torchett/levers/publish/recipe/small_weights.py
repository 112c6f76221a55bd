"""Embeddings and linears with weights of one byte each, row by row.

    rows of float32 ──► one byte an element + a scale (and a bias) a row      ¼ of the bytes

int8 embeddings are read by PyTorch's own kernel; fp8 (e4m3, as bytes) and linears are widened
where they are used. The gate compares all of it with the anchor.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchett.levers.publish.errors import RecipeError
from torchett.levers.publish.recipe.recipe import Recipe
from torchett.levers.publish.recipe.tensor_file import Spec, let_go, new_tensors

_FP8_MOST = 448.0
_AT_ONCE = 4 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """A tensor of the served model that is made from rows of a trained one."""

    name: str
    spec: Spec
    of_rows: Callable[[Tensor], Tensor]


class Int8EmbeddingBag(nn.Module):  # type: ignore[misc]
    """An `EmbeddingBag` of sums whose rows are bytes, each with a scale and a bias."""

    def __init__(self, bag: nn.EmbeddingBag) -> None:
        super().__init__()
        self.include_last_offset = bag.include_last_offset
        shape = bag.num_embeddings, bag.embedding_dim + 8
        self.register_buffer("packed", torch.empty(shape, dtype=torch.uint8, device="meta"))

    def forward(
        self, ids: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        lookup = torch.ops.quantized.embedding_bag_byte_rowwise_offsets
        assert offsets is not None, "an int8 EmbeddingBag needs offsets"
        found: Tensor = lookup(
            self.packed, ids, offsets, False, 0, False, per_sample_weights, None,
            self.include_last_offset,
        )  # fmt: skip
        return found


class Fp8EmbeddingBag(nn.Module):  # type: ignore[misc]
    """An `EmbeddingBag` whose rows are float8 (e4m3), each with a scale."""

    def __init__(self, bag: nn.EmbeddingBag) -> None:
        super().__init__()
        self.mode, self.include_last_offset = bag.mode, bag.include_last_offset
        shape = bag.num_embeddings, bag.embedding_dim
        self.register_buffer("bytes_", torch.empty(shape, dtype=torch.uint8, device="meta"))
        self.register_buffer("scale", torch.empty((shape[0], 1), device="meta"))

    def forward(
        self, ids: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        last = self.bytes_.shape[0]
        flat = torch.where(ids < 0, last, ids).reshape(-1)  # refused, not counted from the end
        rows = self.bytes_[flat].view(torch.float8_e4m3fn).float() * self.scale[flat]
        at = torch.arange(flat.shape[0], device=ids.device)
        if offsets is None:
            at = at.view(ids.shape)
        return nn.functional.embedding_bag(
            at, rows, offsets, mode=self.mode, include_last_offset=self.include_last_offset,
            per_sample_weights=per_sample_weights,
        )  # fmt: skip


class SmallLinear(nn.Module):  # type: ignore[misc]
    """A `Linear` whose weight is int8 or float8, each output with a scale."""

    def __init__(self, linear: nn.Linear, *, fp8: bool) -> None:
        super().__init__()
        self.fp8 = fp8
        shape = linear.out_features, linear.in_features
        dtype = torch.uint8 if fp8 else torch.int8
        self.register_buffer("bytes_", torch.empty(shape, dtype=dtype, device="meta"))
        self.register_buffer("scale", torch.empty((shape[0], 1), device="meta"))
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        wide = self.bytes_.view(torch.float8_e4m3fn) if self.fp8 else self.bytes_
        return nn.functional.linear(x, wide.float() * self.scale, self.bias)


def make_small(model: nn.Module, recipe: Recipe) -> dict[str, list[Target]]:
    """Swap the model's modules as the recipe says; trained tensor → what is made of it."""
    made: dict[str, list[Target]] = {}
    shared = _weights_of_several(model)
    for name, module in list(model.named_modules()):
        weight = f"{name}.weight" if name else "weight"
        if isinstance(module, nn.EmbeddingBag) and recipe.embeddings != "as trained":
            _refuse_odd_bag(name, module, recipe.embeddings)
            fp8 = recipe.embeddings == "fp8"
            new: nn.Module = Fp8EmbeddingBag(module) if fp8 else Int8EmbeddingBag(module)
            targets = _fp8(name, module.weight) if fp8 else _packed(name, module)
        elif isinstance(module, nn.Linear) and recipe.linears != "as trained":
            fp8 = recipe.linears == "fp8"
            new = SmallLinear(module, fp8=fp8)
            targets = (_fp8 if fp8 else _int8)(name, module.weight)
        else:
            continue
        if weight in shared:
            raise RecipeError(f"recipe: {weight!r} is shared by two modules: it stays as trained")
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, new)
        made[weight] = targets
    return made


def _weights_of_several(model: nn.Module) -> set[str]:
    names: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(tensor), []).append(name)
    return {name for several in names.values() if len(several) > 1 for name in several}


def _refuse_odd_bag(name: str, bag: nn.EmbeddingBag, kind: str) -> None:
    if kind == "int8" and bag.mode != "sum":
        raise RecipeError(f"recipe: int8 of {name!r}: expected mode 'sum', found {bag.mode!r}")
    if bag.padding_idx is not None or bag.max_norm is not None:
        raise RecipeError(f"recipe: {kind} of {name!r}: padding_idx and max_norm are not supported")


def _packed(name: str, bag: nn.EmbeddingBag) -> list[Target]:
    spec = Spec((bag.num_embeddings, bag.embedding_dim + 8), torch.uint8)
    pack = torch.ops.quantized.embedding_bag_byte_prepack
    return [Target(f"{name}.packed", spec, lambda rows: pack(rows.float().contiguous()))]


def _int8(name: str, weight: Tensor) -> list[Target]:
    def scale(rows: Tensor) -> Tensor:
        most = rows.float().abs().amax(1, keepdim=True)
        return torch.where(most > 0, most / 127, torch.ones_like(most))

    def steps(rows: Tensor) -> Tensor:
        return (rows.float() / scale(rows)).round().clamp(-127, 127).to(torch.int8)

    return _two(name, weight, torch.int8, steps, scale)


def _fp8(name: str, weight: Tensor) -> list[Target]:
    def scale(rows: Tensor) -> Tensor:
        most = rows.float().abs().amax(1, keepdim=True)
        return torch.where(most > 0, most / _FP8_MOST, torch.ones_like(most))

    def bytes_(rows: Tensor) -> Tensor:
        return (rows.float() / scale(rows)).to(torch.float8_e4m3fn).view(torch.uint8)

    return _two(name, weight, torch.uint8, bytes_, scale)


def _two(name: str, weight: Tensor, dtype: Any, steps: Any, scale: Any) -> list[Target]:
    rows, width = weight.shape
    return [
        Target(f"{name}.bytes_", Spec((rows, width), dtype), steps),
        Target(f"{name}.scale", Spec((rows, 1), torch.float32), scale),
    ]


def write_small(
    trained: Mapping[str, Tensor], made: Mapping[str, list[Target]], path: Path
) -> None:
    """Write the served model's tensors, a few rows at a time."""
    specs = {
        name: Spec(tuple(tensor.shape), tensor.dtype)
        for name, tensor in trained.items()
        if name not in made
    }
    specs |= {target.name: target.spec for targets in made.values() for target in targets}
    with new_tensors(path, specs) as views:
        for name, tensor in trained.items():
            if name not in made:
                views[name].copy_(tensor)
                continue
            step = max(1, _AT_ONCE // max(tensor[:1].nbytes, 1))
            for at in range(0, tensor.shape[0], step):
                rows = tensor[at : at + step]
                for target in made[name]:
                    views[target.name][at : at + step] = target.of_rows(rows)
            if tensor.nbytes > _AT_ONCE:
                for target in made[name]:
                    let_go(views[target.name])
