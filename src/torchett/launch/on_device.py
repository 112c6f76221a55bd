"""A context on the device, made ahead: about a second that a restarted rank does not wait for.

For a standby that may hold one (`ett run --standby-device`). It costs some hundred MiB of device
memory per rank, and a script that forks before it first uses the device, or sets
CUDA_VISIBLE_DEVICES itself, cannot have it.
"""

import os
from importlib import import_module


def take_place() -> None:
    """Make the context, and what the first matrix product would make, on this standby's device."""
    import torch

    place = int(os.environ.get("ETT_PLACE", "0"))
    if not torch.cuda.is_available() or place >= torch.cuda.device_count():
        return
    torch.cuda.set_device(place)
    ones = torch.ones(16, 16, device="cuda")
    for kind in (torch.float32, torch.bfloat16):
        ones.to(kind) @ ones.to(kind)
    torch.cuda.synchronize()
    del ones
    torch.cuda.empty_cache()


def wake_triton() -> None:
    """Load what compiled kernels are launched with."""
    import torch
    import torch._inductor.runtime.triton_heuristics

    if torch.cuda.is_initialized():
        import_module("triton.runtime").driver.active.get_current_target()
