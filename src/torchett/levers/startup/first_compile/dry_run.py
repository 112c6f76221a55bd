"""Computes the loss once, eagerly, to find out whether it has side effects.

    dry_run(model, loss, batch)  ──► ValueError: the loss writes to weights (aten::add_.Tensor)

It refuses a loss that
- draws from a generator of the CPU,
- writes to weights (an embedding with `max_norm`) or to tensors outside the model,
- uses weights of another model, which would get gradients,
- communicates with other ranks.
Side effects on other objects, such as a counter in a global variable, are not detected.
"""

import random
import sys
from collections.abc import Callable, Collection
from typing import Any

from torchett.levers.startup.plan.surroundings import moved, restore


def dry_run(
    model: Any, loss: Callable[[Any, Any], Any], batch: Any, own: Collection[Any] = ()
) -> bool:
    """Whether `loss(model, batch)` draws on a GPU; ValueError if it has side effects.

    A forbidden write or draw of torch is refused before it happens. The generators of Python and
    numpy are restored afterwards. Tensors and generators in `own` may change. torch.compile is off
    meanwhile for all threads: code that it sees under a dispatch mode is never compiled later.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    memory = _Memory(model, batch, own)
    draws_on_gpu = False

    class DrawWatch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal draws_on_gpu
            kwargs = kwargs or {}
            given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
            memory.check(op, given)
            if torch.Tag.nondeterministic_seeded in op.tags:
                draws_on_gpu |= _draws_on_gpu(given, own)
            result = op(*args, **kwargs)
            memory.add_result(result, given)
            return result

    before: dict[str, Any] = {"random": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        before["numpy"] = numpy.random.get_state()
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), DrawWatch():
            loss(model, batch)
    finally:
        drawn = moved(before)
        if drawn:
            restore(before)
    if drawn:
        raise ValueError("the loss draws from a generator of Python or numpy")
    return draws_on_gpu


class _Memory:
    """The storages of the tensors: `_own` may be written to, `_known` may be used."""

    def __init__(self, model: Any, batch: Any, own: Collection[Any]) -> None:
        self._own = set(map(_storage_id, _tensors(own)))
        of_model = (*model.parameters(), *model.buffers())
        self._known = set(map(_storage_id, (*of_model, *_tensors(batch)))) | self._own

    def check(self, op: Any, given: dict[str, Any]) -> None:
        """ValueError for a call with side effects."""
        if op.namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd"):
            raise ValueError("the loss communicates with other ranks")
        for argument in op._schema.arguments if op._schema.is_mutable else ():
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = _tensors(given.get(argument.name))
                if not all(_storage_id(tensor) in self._own for tensor in written):
                    raise ValueError(f"the loss writes to weights, or outside the model ({op})")
        for tensor in _tensors(given):
            if tensor.requires_grad and tensor.is_leaf and _storage_id(tensor) not in self._known:
                raise ValueError(f"the loss uses weights that are not the model's ({op})")

    def add_result(self, result: Any, given: dict[str, Any]) -> None:
        """Allow writes to the result of a call, unless it is a view of an argument."""
        new = set(map(_storage_id, _tensors(result))) - set(map(_storage_id, _tensors(given)))
        self._own |= new
        self._known |= new


def _tensors(value: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _storage_id(tensor: Any) -> int:
    """The same number for tensors that share memory, else another one."""
    try:
        return _address(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):  # a sparse tensor has no storage
        return id(tensor)


def _address(wrapper: Any) -> int:
    """The address of the C++ object: two Python objects may wrap one."""
    return int(getattr(wrapper, "_cdata", id(wrapper)))


def _draws_on_gpu(given: dict[str, Any], own: Collection[Any]) -> bool:
    """Whether this call of a random operator draws on a GPU; ValueError if on the CPU."""
    import torch

    if given.get("dropout_p") == 0.0:
        return False
    if (generator := given.get("generator")) is not None:
        allowed = [one for one in own if isinstance(one, torch.Generator)]
        if any(_address(generator) == _address(one) for one in allowed):
            return False
        raise ValueError("the loss draws from a generator that is not the model's")
    tensors = [value for value in given.values() if isinstance(value, torch.Tensor)]
    device = tensors[0].device if tensors else torch.device(given.get("device") or "cpu")
    if device.type == "cpu":
        raise ValueError("the loss draws from the CPU's generator (dropout on a CPU?)")
    return True
