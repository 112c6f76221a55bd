"""Blanks: what a checkpoint is loaded into, where an object has no state of its own yet.

A fresh optimizer has none before its first step. Those of torch.optim keep tensors of their
parameter's shape and single numbers, so the checkpoint's metadata says what to make. Any other is
made to take a step with zero gradients at a rate of zero, which costs time and memory.
"""

from collections.abc import Sequence
from typing import Any

from torchett.levers.checkpoint.errors import StateMismatch
from torchett.levers.checkpoint.state import optimizer_names
from torchett.levers.checkpoint.state.optimizer_names import Names
from torchett.levers.checkpoint.torch_names import has_state_dict_hooks, set_element


def to_fill(key: str, value: Any, metadata: Any) -> dict[str, Any]:
    """The state_dict of `value`, saved under `key`, with a place for each tensor to load."""
    import torch

    if not isinstance(value, torch.optim.Optimizer) or value.state:
        found: dict[str, Any] = value.state_dict()
        return found
    blank = _of_metadata(key, value, metadata) if _is_stock(value) else None
    if blank is None:
        idle_step(value)
        return dict(value.state_dict())
    return {**value.state_dict(), "state": blank}


def to_fill_by_name(key: str, optimizer: Any, metadata: Any, names: Names | None) -> dict[str, Any]:
    """A place for each value that was saved by the name of a parameter this rank has."""
    import torch
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    if names is None:
        raise StateMismatch(
            f"the state of {key!r} was saved by the names of its parameters, and this job's are in "
            "no module of the state: put the model into the state under the key it was saved with"
        )
    target = optimizer_names.inner(optimizer)
    parameters = [p for group in target.param_groups for p in group["params"]]
    flat = [name for group in names for name in group]
    by_name = dict(zip(flat, parameters, strict=True))
    saved = [
        (metadata.planner_data[name][1:], told)
        for name, told in metadata.state_dict_metadata.items()
        if metadata.planner_data[name][0] == key
    ]
    saved = [
        (path, told)
        for path, told in saved
        if path[0] != "state" or (len(path) > 1 and path[1] in by_name)
    ]
    live: dict[str, Any] = {}
    if not _fits(target, by_name, saved):
        if not target.state:
            idle_step(target)
        live = optimizer_names.by_name(optimizer, names)
    blank: dict[str, Any] = {"state": {}, "param_groups": {}}
    for path, told in saved:
        made = None
        if isinstance(told, TensorStorageMetadata):
            made = _element(live, path) if path[0] == "state" and live else None
            if not isinstance(made, torch.Tensor):
                made = torch.empty(told.size, dtype=told.properties.dtype)
                if path[0] == "state" and told.size and told.size == by_name[path[1]].shape:
                    dtype = told.properties.dtype
                    made = torch.empty_like(by_name[path[1]], dtype=dtype, requires_grad=False)
        set_element(blank, path, made)
    return blank


def _element(nested: Any, path: Sequence[Any]) -> Any:
    """What lies there in nested dicts and lists; None if nothing does."""
    for key in path:
        try:
            nested = nested[key]
        except (KeyError, IndexError, TypeError):
            return None
    return nested


def is_saved_by_name(key: str, metadata: Any) -> bool:
    """Whether the checkpoint has the optimizer `key` by the names of parameters, or by numbers."""
    return any(
        path[:2] == (key, "param_groups") and len(path) > 2 and isinstance(path[2], str)
        for path in metadata.planner_data.values()
    )


def _fits(
    optimizer: Any, by_name: dict[str, Any], saved: Sequence[tuple[tuple[Any, ...], Any]]
) -> bool:
    """Whether each saved tensor is a single number or has its parameter's shape."""
    import torch
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.tensor import DTensor

    plain = {type(p) for p in by_name.values()} <= {torch.Tensor, torch.nn.Parameter, DTensor}
    return (plain and _is_stock(optimizer)) and all(
        len(path) == 3
        and isinstance(told, TensorStorageMetadata)
        and (not told.size or told.size == by_name[path[1]].shape)
        for path, told in saved
        if path[0] == "state"
    )


def _is_stock(optimizer: Any) -> bool:
    stock = type(optimizer).__module__.startswith("torch.optim.")
    return stock and not has_state_dict_hooks(optimizer)


def _of_metadata(key: str, optimizer: Any, metadata: Any) -> dict[int, dict[str, Any]] | None:
    """Parameter's number → blanks by name; None if the checkpoint's state is not a plain one."""
    import torch
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.tensor import DTensor

    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not {type(p) for p in parameters} <= {torch.Tensor, torch.nn.Parameter, DTensor}:
        return None
    blank: dict[int, dict[str, Any]] = {}
    for name, told in metadata.state_dict_metadata.items():
        path = metadata.planner_data[name]
        if path[:2] != (key, "state"):
            continue
        if len(path) != 4 or not path[2].isdigit() or not isinstance(told, TensorStorageMetadata):
            return None
        number = int(path[2])
        if number >= len(parameters):
            return None
        dtype, made = told.properties.dtype, blank.setdefault(number, {})
        if not told.size:  # the optimizer moves it to its device where it wants it there
            made[path[3]] = torch.empty((), dtype=dtype)
        elif told.size == parameters[number].shape:
            made[path[3]] = torch.empty_like(parameters[number], dtype=dtype, requires_grad=False)
        else:
            return None
    return dict(sorted(blank.items()))


def idle_step(optimizer: Any) -> None:
    """Let an optimizer make its states by a step that changes no weight."""
    import torch

    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if any(p.grad is not None for p in parameters):
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if torch.is_tensor(group["lr"]) else 0.0
    for p in parameters:
        p.grad = torch.zeros_like(p)
    try:
        optimizer.step(closure=None)
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
