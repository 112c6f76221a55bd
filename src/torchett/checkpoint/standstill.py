"""A notice while the loop stands still: it evaluates or compiles, maybe for longer than the grace.

    loop      ── 41 ── 42 ─┤ evaluation ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
    notice                      ▲ ┄┄ half of the grace ┄┄ ● 42 is saved from a thread

If no step has ended by then, the state is still the one after the last step, as long as no
optimizer has stepped since; the next one is kept waiting meanwhile. Buffers and loaders may have
moved on in a forward pass, but not while the model evaluates.
"""

import time
from collections.abc import Mapping
from typing import Any

from torchett.checkpoint import fence
from torchett.checkpoint.ranks import Ranks

_ASK_S = 0.05


def unlike_its_last_step(state: Mapping[str, Any]) -> str | None:
    """Why the state may differ from the one after the last step; None if it cannot."""
    import torch

    if fence.has_stepped():
        return "an optimizer has stepped since"
    models = [value for value in state.values() if isinstance(value, torch.nn.Module)]
    if models and not any(module.training for model in models for module in model.modules()):
        return None  # it evaluates: no forward pass of training is under way
    for key, value in state.items():
        if isinstance(value, torch.nn.Module):
            if next(value.buffers(), None) is not None:
                return f"{key} has buffers, which a forward pass may have changed"
        elif not isinstance(value, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
            return f"{key} may have moved on"
    return None


def all_stand_at(step: int, ranks: Ranks, within_s: float) -> bool:
    """Whether every rank says so of itself, of this same step and in this time."""
    until = time.monotonic() + within_s
    ranks.tell(f"standstill/{step}/{ranks.rank}", "yes")
    while any(ranks.told(f"standstill/{step}/{rank}") is None for rank in range(ranks.size)):
        if time.monotonic() > until:
            return False
        time.sleep(_ASK_S)
    return True
