"""The steps of a recipe: from an anchor to the files of a version, each step timed.

load ─ (small weights) ─ export ─ package ─ (onnx) ─ parity ──► model.pt2  weights.safetensors
                                                    examples.safetensors  snapshot.json  …
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchett.levers.publish.errors import ParityError, RecipeError, one_line
from torchett.levers.publish.recipe.anchor import Anchor
from torchett.levers.publish.recipe.find_recipe import Found
from torchett.levers.publish.recipe.recipe import Recipe
from torchett.levers.publish.recipe.tensor_file import write_tensors
from torchett.levers.publish.recipe.weights import build, filled, write_weights
from torchett.levers.publish.serving import snapshot
from torchett.levers.publish.serving.snapshot import Snapshot, SnapshotError, read_tensors
from torchett.store import Store

_SERVED = {
    "model.pt2",
    "weights.safetensors",
    "constants.safetensors",
    "examples.safetensors",
    "snapshot.json",
    "load.py",
    "model.onnx",
    "model.onnx.data",
}


@dataclass(slots=True, kw_only=True)
class Made:
    """The files of a version, and how it went."""

    files: dict[str, Path]
    parity: Mapping[str, Any]
    timings: dict[str, float] = field(default_factory=dict)
    code_was_cached: bool = False

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.timings[name] = round(time.monotonic() - began, 3)


def run_steps(
    found: Found,
    anchor: Anchor,
    folder: Path,
    cache: Store,
    *,
    still_ours: Callable[[], None] = lambda: None,
) -> Made:
    """Make the files of a version in a folder; nothing is registered.

    `still_ours` is asked between steps and raises where another worker took over.
    """
    recipe = found.recipe
    made = Made(files={}, parity={})
    with made.step("load"):
        aliases = write_weights(anchor, recipe, folder / "anchor.safetensors")
        trained = read_tensors(folder / "anchor.safetensors")
        model = build(recipe)
        filled(model, trained, aliases)
    still_ours()
    with made.step("answer"):
        dtypes = _write_examples(model, recipe, folder / "examples.safetensors")
    still_ours()
    with made.step("weights"):
        served = _served(recipe, model, trained, aliases, folder)
    if recipe.compiled or recipe.onnx:
        still_ours()
        _write_code(served, recipe, made, cache, folder)
        still_ours()
    _describe(folder, recipe, aliases, dtypes)
    shutil.copyfile(snapshot.__file__, folder / "load.py")
    if recipe.compiled:
        with made.step("parity"):
            made.parity = _gate(folder)
    if recipe.onnx:
        from torchett.levers.publish.recipe.onnx_file import check_onnx

        with made.step("onnx parity"):
            examples = folder / "examples.safetensors"
            made.parity = {**made.parity, **check_onnx(folder / "model.onnx", examples, recipe)}
    made.files = {path.name: path for path in folder.iterdir() if path.name in _SERVED}
    return made


def _write_examples(model: Any, recipe: Recipe, path: Path) -> list[str]:
    """Write inputs of each batch size with the model's answers; the dtypes of the inputs."""
    import torch
    from torch.utils._pytree import tree_leaves

    found: dict[str, Any] = {}
    dtypes: list[str] = []
    for batch in recipe.batches:
        try:
            inputs = tuple(recipe.example(batch))
        except Exception as error:
            raise RecipeError(f"recipe: example({batch}) raised {one_line(error)}") from error
        dtypes = _checked_inputs(inputs, recipe, batch)
        try:
            with torch.no_grad():
                answers = [one for one in tree_leaves(model(*inputs)) if torch.is_tensor(one)]
        except Exception as error:
            raise RecipeError(
                f"recipe: the model raised on example({batch}): {one_line(error)}"
            ) from error
        if not answers:
            raise RecipeError("recipe: the model answers without a tensor")
        found |= {f"{batch}.input.{at}": one for at, one in enumerate(inputs)}
        found |= {f"{batch}.answer.{at}": one for at, one in enumerate(answers)}
    write_tensors(path, found)
    return dtypes


def _checked_inputs(inputs: tuple[Any, ...], recipe: Recipe, batch: int) -> list[str]:
    """The inputs' dtypes; RecipeError if they are not as the recipe declares."""
    dtypes = [str(getattr(one, "dtype", type(one).__name__)) for one in inputs]
    declared = _declared(recipe, dtypes)
    problem = snapshot.refusal(declared["inputs"], declared["dims"], inputs)
    if problem is not None:
        raise RecipeError(f"recipe: example({batch}) does not fit its inputs: {problem}")
    return dtypes


def _served(
    recipe: Recipe, model: Any, trained: dict[str, Any], aliases: dict[str, str], folder: Path
) -> Any:
    """The model that is served, over weights.safetensors."""
    path = folder / "weights.safetensors"
    if recipe.embeddings == recipe.linears == "as trained":
        (folder / "anchor.safetensors").rename(path)
        return model
    from torchett.levers.publish.recipe.small_weights import make_small, write_small

    small = build(recipe)
    write_small(trained, make_small(small, recipe), path)
    filled(small, read_tensors(path), aliases)
    return small


def _write_code(served: Any, recipe: Recipe, made: Made, cache: Store, folder: Path) -> None:
    from torchett.levers.publish.recipe.package import constants_of, exported, write_package

    with made.step("export"):
        program = exported(served, recipe)
    if recipe.compiled:
        with made.step("package"):
            made.code_was_cached = write_package(program, recipe, cache, folder / "model.pt2")
        if constants := constants_of(program):
            write_tensors(folder / "constants.safetensors", constants)
    if recipe.onnx:
        from torchett.levers.publish.recipe.onnx_file import write_onnx

        with made.step("onnx"):
            write_onnx(program, recipe, folder / "model.onnx")


def _describe(folder: Path, recipe: Recipe, aliases: Mapping[str, str], dtypes: list[str]) -> None:
    import torch

    snapshot = {
        "format": "snapshot/1",
        "torch": str(torch.__version__),
        "isa": recipe.isa,
        "aliases": dict(aliases),
        "parity": {"most": recipe.parity.most, "mean": recipe.parity.mean},
        "batches": list(recipe.batches),
        **_declared(recipe, dtypes),
    }
    (folder / "snapshot.json").write_text(json.dumps(snapshot, indent=1, sort_keys=True))


def _declared(recipe: Recipe, dtypes: list[str]) -> dict[str, Any]:
    shapes = [*recipe.inputs.items()]
    return {
        "dims": {name: list(bounds) for name, bounds in recipe.dims.items()},
        "inputs": [
            {"name": name, "shape": list(shape), "dtype": dtypes[at] if at < len(dtypes) else "?"}
            for at, (name, shape) in enumerate(shapes)
        ],
    }


def _gate(folder: Path) -> Mapping[str, Any]:
    """How far the served files are from the anchor; ParityError if further than they may be."""
    try:
        return Snapshot(folder).check()
    except SnapshotError as error:
        raise ParityError(
            f"parity: {error}; loosen parity in the recipe, or leave out what makes weights small"
        ) from None
