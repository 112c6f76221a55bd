"""The fence: what has to happen before weights change, at the last moment it can.

An optimizer's weights and states change in its `step` and nowhere else, so a copy of them may run
until then. torch calls our hook before every step of every optimizer, also of a compiled one
(there it costs a graph break, which optimizers have anyway). An optimizer whose hook has not been
seen since the last look is not trusted: what it owns is copied at once.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from torchett.levers.checkpoint.torch_names import not_compiled

_before: list[Callable[[], None]] = []
_stepped: "weakref.WeakSet[Any]" = weakref.WeakSet()
_gate = threading.Event()  # not set: steps have to wait
_gate.set()
_installed = False


def install() -> None:
    """Let torch call us before each optimizer step."""
    global _installed
    if _installed:
        return
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    on_compiled_step = not_compiled(_on_step)

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            on_compiled_step(optimizer)
        else:
            _on_step(optimizer)

    register_optimizer_step_pre_hook(hook)
    _installed = True


def _on_step(optimizer: Any) -> None:
    _stepped.add(optimizer)
    if not _gate.is_set():
        _gate.wait()
    if _before:
        run()


@contextmanager
def no_steps() -> Iterator[None]:
    """In the body no optimizer begins a step; one that does has to wait."""
    _gate.clear()
    try:
        yield
    finally:
        _gate.set()


def before_next_step(act: Callable[[], None]) -> None:
    """Call `act` once, before the next step of any optimizer (or when `run` is called)."""
    _before.append(act)


def run() -> None:
    """Do now what waits for the next step."""
    while _before:
        _before.pop(0)()


def has_stepped() -> bool:
    """Whether any optimizer has begun a step since the last call of `forget`."""
    return bool(_stepped)


def guarded() -> set[int]:
    """Addresses of tensors that change in a step we are told of beforehand, and only there.

    Those are weights and states of optimizers that have stepped since the last call of `forget`.
    """
    import torch

    found: set[int] = set()
    for optimizer in list(_stepped):
        states = [s.values() for s in optimizer.state.values() if isinstance(s, dict)]
        owned = [group["params"] for group in optimizer.param_groups]
        owned.append([v for v in chain.from_iterable(states) if isinstance(v, torch.Tensor)])
        for tensors in owned:
            found.update(addresses(tensors))
    found.discard(0)
    return found


def forget() -> None:
    """Trust only optimizers whose hook is seen from now on."""
    _stepped.clear()


def addresses(tensors: Sequence[Any]) -> list[int]:
    """Where each tensor lies; 0 for one without memory of its own."""
    import torch

    if set(map(type, tensors)) <= {torch.Tensor, torch.nn.Parameter}:
        try:
            return list(map(torch.Tensor.data_ptr, tensors))
        except RuntimeError:
            pass  # a sparse one among them
    return [_address(tensor) for tensor in tensors]


def _address(tensor: Any) -> int:
    if hasattr(tensor, "local_shards"):  # a ShardedTensor: torch would warn, and then refuse
        return 0
    try:
        return int(getattr(tensor, "_local_tensor", tensor).data_ptr())
    except (RuntimeError, AttributeError):
        return 0  # never trusted
