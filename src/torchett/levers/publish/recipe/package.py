"""The model's code: exported once, compiled once, and used again with other weights.

    model ─ export ─► graph ─ hash ─┬─ in the code cache ──────────────► model.pt2
                                    └─ not yet: AOTInductor, g++ ──────► model.pt2, cached

A graph is compiled for an instruction-set floor, not for the host that compiles. Weights lie apart,
every one of them: Inductor would otherwise write small ones into the code.
"""

import hashlib
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torchett.levers.publish.errors import PublishError, RecipeError, one_line
from torchett.levers.publish.recipe.recipe import Recipe
from torchett.levers.publish.registry.blobs import blob_of
from torchett.store import Store

log = logging.getLogger("torchett")

# Widest vectors that Inductor may write for a floor.
_VECTOR_BITS = {"x86-64-v2": 1, "x86-64-v3": 256, "x86-64-v4": 512}


def exported(model: Any, recipe: Recipe) -> Any:
    """The model as a graph that takes every batch size the recipe declares, 1 included."""
    import torch

    inputs, batch = _telling_example(recipe)
    dims = {
        name: torch.export.Dim(name, min=least, max=most)
        for name, (least, most) in recipe.dims.items()
        if least < most
    }
    shapes = tuple(
        {at: dims[size] for at, size in enumerate(shape) if size in dims}
        for shape in recipe.inputs.values()
    )
    try:
        with warnings.catch_warnings(), _sizes_are_not_special():
            warnings.simplefilter("ignore")
            program = torch.export.export(model, inputs, dynamic_shapes=shapes)
    except Exception as error:
        raise RecipeError(f"export of a batch of {batch} failed: {one_line(error)}") from error
    return program


def graph_hash(program: Any, recipe: Recipe) -> str:
    """What makes two graphs the same code: not their weights."""
    import torch

    described = [str(torch.__version__), recipe.isa, json.dumps(_options(recipe), sort_keys=True)]
    described += [program.graph_module.code, str(program.range_constraints)]
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op in ("placeholder", "output") and hasattr(value, "shape"):
            described.append(f"{node.name} {value.dtype} {tuple(value.shape)} {value.stride()}")
        described.append(f"{node.op} {node.target} {node.args} {node.kwargs}")
    described += [str(program.graph_signature), str(program.call_spec)]
    return hashlib.sha256("\n".join(described).encode()).hexdigest()


def write_package(program: Any, recipe: Recipe, cache: Store, path: Path) -> bool:
    """Write the compiled graph to `path`; whether it was in the cache."""
    name = f"code/{graph_hash(program, recipe)}"
    if _cached(cache, name, path):
        return True
    _compile(program, recipe, path)
    stored = blob_of(path)
    cache.write_file(f"{name}.{stored.sha256}.pt2", path)
    cache.write(f"{name}.json", json.dumps({"sha256": stored.sha256, "size": stored.size}).encode())
    return False


def _cached(cache: Store, name: str, path: Path) -> bool:
    """Whether the cache had the code, with the bytes that were put there."""
    try:
        stored = json.loads(cache.read(f"{name}.json", limit=4096))
        cache.read_file(f"{name}.{stored['sha256']}.pt2", path)
    except (FileNotFoundError, ValueError, KeyError):
        return False
    if blob_of(path).sha256 == stored["sha256"]:
        return True
    log.warning("torchett: %s/%s is damaged: compiled anew", cache.url, name)
    path.unlink()
    return False


def _compile(program: Any, recipe: Recipe, path: Path) -> None:
    import torch

    with tempfile.TemporaryDirectory(prefix="ett-aoti-", dir=path.parent) as scratch:
        made = Path(scratch) / "model.pt2"
        try:
            with warnings.catch_warnings(), _sizes_are_not_special():
                warnings.simplefilter("ignore")
                torch._inductor.aoti_compile_and_package(
                    program, package_path=str(made), inductor_configs=_options(recipe)
                )
        except OSError:
            raise
        except Exception as error:
            raise PublishError(f"AOTInductor could not compile: {one_line(error)}") from error
        made.replace(path)


def _options(recipe: Recipe) -> dict[str, Any]:
    """Inductor's settings: weights apart, all of them; instructions of the floor only."""
    options: dict[str, Any] = {
        "aot_inductor.package_constants_in_so": False,
        "always_keep_tensor_constants": True,
    }
    if recipe.isa in _VECTOR_BITS:
        options |= {"cpp.march": recipe.isa, "cpp.simdlen": _VECTOR_BITS[recipe.isa]}
    return options


def constants_of(program: Any) -> dict[str, Any]:
    """Tensors of the graph that are no weights of the model: made by the model itself."""
    import torch

    return {name: it for name, it in program.constants.items() if isinstance(it, torch.Tensor)}


def _telling_example(recipe: Recipe) -> tuple[tuple[Any, ...], int]:
    """Inputs whose dynamic sizes differ from each other, and from 0 and 1, if there are such."""
    least, most = recipe.dims[recipe.batch]
    fallback: tuple[tuple[Any, ...], int] | None = None
    for batch in (7, 11, 5, 6, 3, 2, least):
        if not least <= batch <= most:
            continue
        inputs = recipe.example(batch)
        sizes = {
            name: tensor.shape[at]
            for tensor, shape in zip(inputs, recipe.inputs.values(), strict=True)
            for at, name in enumerate(shape)
            if isinstance(name, str)
        }
        fallback = fallback or (inputs, batch)
        if len(set(sizes.values())) == len(sizes) and min(sizes.values()) > 1:
            return inputs, batch
    assert fallback is not None
    return fallback


@contextmanager
def _sizes_are_not_special() -> Iterator[None]:
    """Let 1 be a size like others: a graph would otherwise be good for 2 and more only."""
    from torch.fx.experimental import _config

    known = hasattr(_config, "backed_size_oblivious")
    with _config.patch(backed_size_oblivious=True) if known else nullcontext():
        yield
