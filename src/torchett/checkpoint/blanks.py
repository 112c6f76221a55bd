"""Blanks: what a checkpoint is loaded into, where an object has no state of its own yet.

A fresh optimizer has none before its first step. Those of torch.optim keep tensors of their
parameter's shape and single numbers, so the checkpoint's metadata says what to make. Any other is
made to take a step with zero gradients at a rate of zero, which costs time and memory.
"""

from typing import Any


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


def _is_stock(optimizer: Any) -> bool:
    return type(optimizer).__module__.startswith("torch.optim.") and not (
        optimizer._optimizer_state_dict_pre_hooks or optimizer._optimizer_state_dict_post_hooks
    )


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
