"""The fence: what has to happen before weights change, at the last moment it can.

An optimizer's weights and states change in its `step` and nowhere else, so a copy of them may run
until then. torch calls our hook before every step of every optimizer, also of a compiled one
(there it costs a graph break, which optimizers have anyway). An optimizer whose hook has not been
seen since the last look is not trusted: what it owns is copied at once.
"""

import weakref
from collections.abc import Callable
from typing import Any

_before: list[Callable[[], None]] = []
_stepped: "weakref.WeakSet[Any]" = weakref.WeakSet()
_installed = False


def install() -> None:
    """Let torch call us before each optimizer step."""
    global _installed
    if _installed:
        return
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    on_compiled_step = torch._disable_dynamo(_on_step)

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            on_compiled_step(optimizer)
        else:
            _on_step(optimizer)

    register_optimizer_step_pre_hook(hook)
    _installed = True


def _on_step(optimizer: Any) -> None:
    _stepped.add(optimizer)
    if _before:
        run()


def before_next_step(act: Callable[[], None]) -> None:
    """Call `act` once, before the next step of any optimizer (or when `run` is called)."""
    _before.append(act)


def run() -> None:
    """Do now what waits for the next step."""
    while _before:
        _before.pop(0)()


def guarded() -> set[int]:
    """Addresses of tensors that change in a step we are told of beforehand, and only there.

    Those are weights and states of optimizers that have stepped since the last call of `forget`.
    """
    import torch

    found: set[int] = set()
    for optimizer in list(_stepped):
        for group in optimizer.param_groups:
            found.update(map(_address, group["params"]))
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if type(value) is torch.Tensor or isinstance(value, torch.Tensor):
                    found.add(_address(value))
    found.discard(0)
    return found


def forget() -> None:
    """Trust only optimizers whose hook is seen from now on."""
    _stepped.clear()


def _address(tensor: Any) -> int:
    import torch

    try:
        if type(tensor) in (torch.Tensor, torch.nn.Parameter):
            return int(tensor.data_ptr())
        return int(getattr(tensor, "_local_tensor", tensor).data_ptr())
    except (RuntimeError, AttributeError):
        return 0  # a tensor without memory of its own: never trusted
