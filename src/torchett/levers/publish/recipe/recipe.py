"""A recipe: how to rebuild a model for serving, and how well it must match its anchor.

    def recipe() -> Recipe:
        return Recipe(
            build=lambda: DLRM(PRESETS["tiny"]),
            example=example_batch,                         # batch size → inputs
            inputs={"dense": ("batch", 13), "ids": (8, "ids"), "offsets": (8, "batch")},
            dims={"batch": (1, 4096), "ids": (1, 16384)},
            parity=Parity(most=1e-5, mean=1e-6),
        )

A target names it: "publish_dlrm.py:recipe" or "package.module:recipe". What it names is called
without arguments: a function that returns a recipe, or a class that is one.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from torchett.levers.publish.errors import RecipeError

Shape = tuple[int | str, ...]  # a name stands for a dynamic dimension
Weights = Literal["as trained", "int8", "fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """How far outputs may be from those of the anchor in PyTorch, over these batch sizes."""

    most: float = 1e-5
    mean: float = 1e-6
    batches: tuple[int, ...] = ()  # none given: the least, the most, and some between


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is rebuilt, exported, compiled and checked.

    `build`       the model; it is called where parameters take no memory, so do not load anything
    `example`     inputs of a batch size, in the order of `inputs`; the same ones each time
    `state`       where the model lies in the checkpoint's state
    `rename`      a tensor's name in the checkpoint → in the model; None leaves it out
    `embeddings`, `linears`   how their weights are stored: "as trained", "int8", or "fp8"
    `isa`         the least that a serving host must have, such as "x86-64-v3"
    `compiled`    False: publish weights and examples only, to be served by your own code
    `onnx`        True: an ONNX file, too, checked by onnxruntime
    `build_on`    "cpu" for a model that computes buffers while it is built
    """

    build: Callable[[], Any]
    example: Callable[[int], tuple[Any, ...]]
    inputs: Mapping[str, Shape]
    dims: Mapping[str, tuple[int, int]]
    batch: str = "batch"
    parity: Parity = field(default_factory=Parity)
    state: str = "model"
    rename: Callable[[str], str | None] = str
    embeddings: Weights = "as trained"
    linears: Weights = "as trained"
    isa: str = "x86-64-v3"
    compiled: bool = True
    onnx: bool = False
    build_on: Literal["meta", "cpu"] = "meta"

    def __post_init__(self) -> None:
        if self.batch not in self.dims:
            raise RecipeError(f"recipe: dims has no {self.batch!r}: expected its bounds there")
        for name, (least, most) in self.dims.items():
            if not 1 <= least <= most:
                raise RecipeError(f"recipe: dims {name!r} is {least} to {most}: expected 1 ≤ a ≤ b")
        for name, shape in self.inputs.items():
            for size in shape:
                if isinstance(size, str) and size not in self.dims:
                    raise RecipeError(f"recipe: input {name!r} has {size!r}, which dims has not")
        for what, asked in (("embeddings", self.embeddings), ("linears", self.linears)):
            if asked not in ("as trained", "int8", "fp8"):
                raise RecipeError(
                    f"recipe: {what}={asked!r}: expected 'as trained', 'int8' or 'fp8'"
                )

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes that parity is checked for; the least is among them, in any case."""
        least, most = self.dims[self.batch]
        some = self.parity.batches or (2, 3, 7, 64, 1000)
        within = {size for size in some if least < size < most}
        return tuple(sorted(within | {least, most}))

    def settings(self) -> dict[str, Any]:
        """What a recipe says, but for its functions."""
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        shown = {name: value for name, value in said.items() if not callable(value)}
        return json.loads(json.dumps(shown, default=repr))  # type: ignore[no-any-return]


def recipe_hash(recipe: Recipe, target: str, sources: Mapping[str, bytes]) -> str:
    """What a recipe is: its target, its settings, and the source of what it is made of."""
    digest = hashlib.sha256(json.dumps([target, recipe.settings()], sort_keys=True).encode())
    for name, source in sorted(sources.items()):
        digest.update(f"\n{name} {len(source)}\n".encode())
        digest.update(source)
    return digest.hexdigest()
