"""The private names of torch that checkpoints use, and what does the same where a torch lacks one.

Each is looked up when it is needed, and a missing one is said once in the log.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

log = logging.getLogger("torchett")
_DCP = "torch.distributed.checkpoint"


@cache
def _found(module: str, name: str) -> Any:
    """The object, or None where this torch has none of this name."""
    try:
        found = getattr(import_module(module), name, None)
    except ImportError:
        found = None
    if found is None:
        log.warning("torchett: checkpoints do without %s.%s: this torch has none", module, name)
    return found


def flatten_state_dict(nested: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The leaves by their dotted names, and the path of each name, as DCP has it."""
    flatten = _found(f"{_DCP}._nested_dict", "flatten_state_dict")
    if flatten is not None:
        flat, paths = flatten(nested)
        return flat, paths
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    planner: Any = DefaultSavePlanner()
    planner.set_up_planner(nested, is_coordinator=False)
    return planner.state_dict, planner.mappings


def set_element(nested: Any, path: Sequence[str | int], value: Any) -> None:
    """Put a value into nested dicts and lists, which grow as needed."""
    for key, following in zip(path, [*path[1:], None], strict=True):
        if isinstance(nested, list):
            nested.extend([None] * (int(key) + 1 - len(nested)))
        if following is None:
            nested[key] = value
            return
        there = nested.get(key) if isinstance(nested, dict) else nested[key]
        if there is None:
            there = nested[key] = {} if isinstance(following, str) else []
        nested = there


def narrow(tensor: Any, offsets: Sequence[int], sizes: Sequence[int]) -> Any:
    """The part of a tensor that begins at these offsets."""
    part = tensor
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=False)):
        if size < tensor.size(dim):
            part = part.narrow(dim, offset, size)
    return part


def copy_all(targets: Sequence[Any], sources: Sequence[Any], *, non_blocking: bool = False) -> None:
    """Copy each source into its target, in one call where torch has one."""
    copy = _found("torch", "_foreach_copy_")
    if copy is not None:
        copy(targets, sources, non_blocking=non_blocking)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=non_blocking)


def one_after_the_other(tensors: Sequence[Any]) -> Any:
    """One flat tensor of all elements."""
    flatten = _found("torch._utils", "_flatten_dense_tensors")
    if flatten is not None:
        return flatten(tensors)
    import torch

    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def apart_again(flat: Any, like: Sequence[Any]) -> Sequence[Any]:
    """Views of a flat tensor, shaped like these."""
    unflatten = _found("torch._utils", "_unflatten_dense_tensors")
    if unflatten is not None:
        views: Sequence[Any] = unflatten(flat, like)
        return views
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def version_of(tensor: Any) -> int:
    """How often a tensor was written to; always 0 where torch does not count."""
    return int(getattr(tensor, "_version", 0))


def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which torch.compile leaves as it is."""
    disable = _found("torch", "_disable_dynamo")  # does not import the compiler, as the other does
    if disable is None:
        import torch

        disable = torch.compiler.disable
    wrapped: Callable[..., Any] = disable(function)
    return wrapped


def has_state_dict_hooks(optimizer: Any) -> bool:
    """Whether somebody changes what an optimizer's state_dict holds."""
    names = ("_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks")
    return any(getattr(optimizer, name, True) for name in names)


def broadcast(key: str, value: Callable[[], str]) -> str:
    """What rank 0's `value()` returned, on every rank of the default group."""
    import torch.distributed as dist

    store_of = _found("torch.distributed.distributed_c10d", "_get_default_store")
    if store_of is None:
        told = [value() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(told, src=0)
        return str(told[0])
    store = store_of()
    if dist.get_rank() == 0:
        store.set(key, value())
    return bytes(store.get(key)).decode()


@dataclass(frozen=True)
class _Place:
    relative_path: str
    offset: int
    length: int
    transform_descriptors: None = None


@dataclass(frozen=True)
class _Prefix:
    prefix: str


def storage_place(path: str, offset: int, length: int) -> Any:
    """Where in which file a tensor lies, as DCP's FileSystemReader reads it."""
    return (_found(f"{_DCP}.filesystem", "_StorageInfo") or _Place)(path, offset, length)


def storage_prefix(prefix: str) -> Any:
    """What the names of a rank's files begin with."""
    return (_found(f"{_DCP}.filesystem", "_StoragePrefix") or _Prefix)(prefix)
