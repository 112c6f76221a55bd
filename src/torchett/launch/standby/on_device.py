"""A device context made ahead, which saves a restarted rank about a second.

For a standby that may hold one (`ett run --standby-device`). It costs some hundred MiB of device
memory per rank, and a script that forks before it first uses the device, or sets
CUDA_VISIBLE_DEVICES itself, cannot have it.
"""

import ctypes
import os
import threading
from importlib import import_module
from typing import Any


def wake_driver() -> None:
    """Begin to make the context, by the driver alone and beside the imports: torch will find it."""
    threading.Thread(target=_make_context, args=(_place(),), name="ett-driver", daemon=True).start()


def _make_context(place: int) -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), place) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _place() -> int:
    return int(os.environ.get("ETT_PLACE", "0"))


def take_place() -> None:
    """Make the context on this standby's device, and load what models are made of."""
    import torch

    place = _place()
    if not torch.cuda.is_available() or place >= torch.cuda.device_count():
        return
    torch.cuda.set_device(place)
    for kind in (torch.float32, torch.bfloat16):
        _train_a_little(kind)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _train_a_little(kind: Any) -> None:
    """Products, attention and the optimizer: each loads its kernels when it is first called."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    weight = torch.ones(64, 64, device="cuda", requires_grad=True)
    heads = (torch.ones(64, 64, device="cuda") @ weight).to(kind).view(1, 2, 32, 64)
    attended = scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    (attended.view(64, 64) @ weight.to(kind)).float().sum().backward()
    torch.optim.AdamW([weight], fused=True).step()


def wake_triton() -> None:
    """Load what compiled kernels are launched with."""
    import torch
    import torch._inductor.runtime.triton_heuristics

    if torch.cuda.is_initialized():
        import_module("triton.runtime").driver.active.get_current_target()
