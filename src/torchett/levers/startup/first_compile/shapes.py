"""The shapes of a batch, stored from one attempt to the next, and a synthetic batch from them.

    attempt 0    first batch ── remember_shapes ──► {"tensor": {"shape": [16, 512], …}}   (JSON)
    attempt 1    {"tensor": …} ── synthetic_like ──► a batch to compile with, before any data

Synthetic tensors have the same shape, strides, dtype and device. Floats are normally distributed.
Integers lie in [0, greatest seen], so that they are valid indices. A sorted integer vector that
begins with 0 is stored with its values: the offsets of an embedding bag must stay offsets.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

Spec = dict[str, Any]
_OFFSETS_AT_MOST = 65_536


def remember_shapes(batch: Any) -> Spec:
    """The input of `synthetic_like` for a batch like this one, as JSON values.

    The greatest integer of a tensor on a GPU needs a wait for the GPU: pass the batch as it comes
    from the loader.
    """
    import torch

    if isinstance(batch, torch.Tensor):
        return {"tensor": _spec(batch)}
    if batch is None or isinstance(batch, bool | int | float | str):
        return {"value": batch}
    if isinstance(batch, dict) and all(isinstance(key, str | int) for key in batch):
        return {"dict": [[key, remember_shapes(part)] for key, part in batch.items()]}
    if (fields := _fields(batch)) is not None:
        kept = {name: remember_shapes(part) for name, part in fields.items()}
        return {"type": f"{type(batch).__module__}:{type(batch).__qualname__}", "fields": kept}
    if isinstance(batch, list | tuple):
        return {type(batch).__name__: [remember_shapes(part) for part in batch]}
    raise ValueError(
        f"a batch holds a {type(batch).__qualname__}: expected tensors and numbers in dicts, "
        "lists, tuples or dataclasses"
    )


def synthetic_like(spec: Spec, *, device: str | None = None) -> Any:
    """A batch with the stored shapes, on the stored device or on another.

    It is the same at every call. The process's generators are not used.
    """
    ((kind, what), *rest) = spec.items()
    match kind:
        case "tensor":
            return _tensor(what, device or what["device"])
        case "value":
            return what
        case "dict":
            return {key: synthetic_like(part, device=device) for key, part in what}
        case "list":
            return [synthetic_like(part, device=device) for part in what]
        case "tuple":
            return tuple(synthetic_like(part, device=device) for part in what)
        case "type":
            fields = dict(rest)["fields"].items()
            return _type(what)(**{k: synthetic_like(part, device=device) for k, part in fields})
    raise ValueError(f"expected a batch's shapes, found {kind!r}")


def map_tensors(function: Callable[[Any], Any], batch: Any) -> Any:
    """The batch with the function applied to each tensor in it; other values stay."""
    import torch

    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return type(batch)((key, map_tensors(function, part)) for key, part in batch.items())
    if (fields := _fields(batch)) is not None:
        return type(batch)(**{key: map_tensors(function, part) for key, part in fields.items()})
    if type(batch) in (list, tuple):
        return type(batch)(map_tensors(function, part) for part in batch)
    return batch


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass or named tuple; None for anything else."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: getattr(value, name) for name in value._fields}
    return None


def _type(name: str) -> Any:
    """The class of that name. Its module must be loaded: a name in a file must import nothing."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not dataclasses.is_dataclass(found) and not hasattr(found, "_fields"):
        raise ValueError(f"the batch was a {name}: import its module first")
    return found


def _spec(tensor: Any) -> Spec:
    import torch

    if tensor.layout is not torch.strided:
        raise ValueError(f"a batch holds a tensor of layout {tensor.layout}: expected a dense one")
    spec: Spec = {
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device),
    }
    if tensor.requires_grad:
        spec["requires_grad"] = True
    if tensor.numel() and not tensor.is_floating_point() and not tensor.is_complex():
        spec["max"] = int(tensor.max())
        if tensor.dim() == 1 and tensor.numel() <= _OFFSETS_AT_MOST and int(tensor[0]) == 0:
            values = tensor.tolist()
            if tensor.dtype != torch.bool and values == sorted(values):
                spec["values"] = values
    return spec


def _tensor(spec: Spec, device: str) -> Any:
    """A tensor of this spec: a filled storage, viewed with the strides."""
    import torch

    dtype, shape, stride = getattr(torch, spec["dtype"]), spec["shape"], spec["stride"]
    extent = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    extent = 0 if 0 in shape else extent
    generator = torch.Generator(device).manual_seed(0)
    if dtype.is_floating_point or dtype.is_complex:
        plain = dtype if dtype.is_complex or dtype.itemsize > 1 else torch.float32
        storage = torch.randn(extent, dtype=plain, device=device, generator=generator).to(dtype)
    elif spec.get("max", 0) < 0:
        storage = torch.full((extent,), spec["max"], dtype=dtype, device=device)
    else:
        high = spec.get("max", 0) + 1
        storage = torch.randint(high, (extent,), device=device, generator=generator).to(dtype)
    tensor = storage.as_strided(shape, stride)
    if "values" in spec:
        tensor.copy_(torch.tensor(spec["values"], dtype=dtype))
    return tensor.requires_grad_(spec.get("requires_grad", False))
