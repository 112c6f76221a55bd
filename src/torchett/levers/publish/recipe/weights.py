"""The model part of an anchor as one file, and the eval model over it, in bounded memory.

    anchor (4 ranks' parts) ── piece by piece ──► anchor.safetensors ── mapped ──► eval model

No process group, no whole tensor in memory: pieces go from one mapped file into another.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchett.levers.checkpoint.stored.tensors import StoredTensor, stored_tensors
from torchett.levers.publish.errors import RecipeError, one_line
from torchett.levers.publish.recipe.anchor import Anchor
from torchett.levers.publish.recipe.recipe import Recipe
from torchett.levers.publish.recipe.tensor_file import Spec, let_go, new_tensors

_PIECE = 16 << 20


def write_weights(anchor: Anchor, recipe: Recipe, path: Path) -> dict[str, str]:
    """Write the model's tensors to a file; names that share storage with another → that one."""
    model = build(recipe)
    groups = shared_names(model)
    with _stored(anchor, recipe) as found:
        wanted = set(model.state_dict(keep_vars=True))
        _refuse_a_misfit(anchor, wanted, found)
        first = {name: groups.get(name, name) for name in found}
        specs = {
            name: Spec(one.shape, one.dtype) for name, one in found.items() if first[name] == name
        }
        with new_tensors(path, specs) as views:
            for name, one in found.items():
                if name in specs:
                    _fill(views[name], one)
            for name, one in found.items():
                if name not in specs:
                    _refuse_another_value(name, one, views[first[name]])
    return {name: to for name, to in first.items() if name != to}


def build(recipe: Recipe) -> Any:
    """The recipe's model in eval mode, without values."""
    import torch

    try:
        with torch.device(recipe.build_on):
            model = recipe.build()
    except Exception as error:
        raise RecipeError(f"recipe: build raised {one_line(error)}") from error
    if not isinstance(model, torch.nn.Module):
        raise RecipeError(f"recipe: build gave a {type(model).__name__}: expected an nn.Module")
    return model.eval()


def eval_model(recipe: Recipe, weights: Mapping[str, Any], aliases: Mapping[str, str]) -> Any:
    """The recipe's model over these tensors: nothing is copied."""
    model = build(recipe)
    filled(model, weights, aliases)
    return model


def filled(model: Any, weights: Mapping[str, Any], aliases: Mapping[str, str]) -> None:
    """Give a model these tensors as its own; one that is shared stays one."""
    import torch

    whole = {**weights, **{name: weights[to] for name, to in aliases.items()}}
    parameters = {
        name: torch.nn.Parameter(whole[name], requires_grad=False)
        for name, _ in model.named_parameters()
        if name in whole
    }
    state = {name: parameters.get(aliases.get(name, name), value) for name, value in whole.items()}
    model.load_state_dict(state, strict=True, assign=True)
    left = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if left:
        raise RecipeError(
            f"recipe: buffer {left[0]!r} is not in the checkpoint: the model computes it while it "
            "is built, so say build_on='cpu'"
        )


def shared_names(model: Any) -> dict[str, str]:
    """Names of tensors that are another one of the model, too → the first name of it."""
    seen: dict[int, str] = {}
    found = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        first = seen.setdefault(id(tensor), name)
        if first != name:
            found[name] = first
    return found


@contextmanager
def _stored(anchor: Anchor, recipe: Recipe) -> Iterator[dict[str, StoredTensor]]:
    """The anchor's tensors, by their names in the model."""
    with stored_tensors(anchor.path) as tensors:
        found: dict[str, StoredTensor] = {}
        for tensor in tensors:
            if str(tensor.path[0]) != recipe.state:
                continue
            name = recipe.rename(".".join(str(part) for part in tensor.path[1:]))
            if name is None:
                continue
            if name in found:
                raise RecipeError(
                    f"recipe: rename gives {name!r} to both {found[name].name} and {tensor.name}"
                )
            found[name] = tensor
        if not found:
            tops = ", ".join(sorted({str(tensor.path[0]) for tensor in tensors})) or "no tensors"
            raise RecipeError(
                f"anchor {anchor.path} has nothing under {recipe.state!r}: it holds {tops}; "
                "say state= in the recipe"
            )
        yield found


def _refuse_a_misfit(anchor: Anchor, wanted: set[str], found: Mapping[str, Any]) -> None:
    missing, more = sorted(wanted - found.keys()), sorted(found.keys() - wanted)
    if missing:
        raise RecipeError(
            f"anchor {anchor.path} lacks {len(missing)} tensors of the recipe's model, "
            f"{missing[0]!r} first: say rename= in the recipe, or build what was trained"
        )
    if more:
        raise RecipeError(
            f"anchor {anchor.path} has {len(more)} tensors that the recipe's model has not, "
            f"{more[0]!r} first: leave them out with rename="
        )


def _fill(view: Any, stored: StoredTensor) -> None:
    for offsets, piece in stored.pieces(_PIECE):
        target = _narrowed(view, offsets, piece.shape)
        target.copy_(piece)
    if view.nbytes >= _PIECE:
        let_go(view)


def _refuse_another_value(name: str, stored: StoredTensor, view: Any) -> None:
    """Tensors that the model shares must have been the same in training, too."""
    import torch

    for offsets, piece in stored.pieces(_PIECE):
        if not torch.equal(_narrowed(view, offsets, piece.shape), piece):
            raise RecipeError(
                f"recipe: the model shares {name!r} with another tensor, the anchor has two that "
                "differ: build them apart"
            )


def _narrowed(view: Any, offsets: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    for dim, (start, size) in enumerate(zip(offsets, shape, strict=True)):
        view = view.narrow(dim, start, size)
    return view
