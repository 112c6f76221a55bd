"""Starts inductor's compile workers and Triton's driver while the model is still being traced.

    without   │ trace, lower │ Triton's driver is built │ lower │ kernels, one by one │
              │              │ workers start ───────────────────────────────────────────── │
    with      │ trace, lower │ lower │ kernels, in parallel │
              │ workers start ───── │
              │ driver │

torch starts its compile workers after it has traced the first graph. These processes import torch
first; until they are ready, torch compiles in its own process. Triton builds its driver when it is
first used.
"""

import logging
import sys
from importlib import import_module

from torchett.record.process.joined_threads import begin_beside

log = logging.getLogger("torchett")


def start_compile_tools() -> None:
    """Start them and return. A no-op without a GPU, or if another backend compiles."""
    torch, compiling = (sys.modules.get(name) for name in ("torch", "torch._inductor.compile_fx"))
    if torch is None or compiling is None or not torch.cuda.is_initialized():
        return
    precompile = sys.modules.get("torchett.levers.startup.first_compile.precompile")
    if getattr(precompile, "followed", None):
        return  # the standby has compiled the model
    try:
        import_module("torch._inductor.async_compile").maybe_warm_pool()
        begin_beside(_start_triton, torch.cuda.current_device(), name="ett-triton")
    except Exception as error:
        log.debug("torchett: compile workers were not started ahead: %r", error)


def _start_triton(device: int) -> None:
    try:
        sys.modules["torch"].cuda.set_device(device)
        import_module("triton.runtime").driver.active.get_current_target()
        import_module("triton.backends.nvidia.compiler").get_ptxas_version()
    except Exception as error:  # no Triton, or that of another vendor
        log.debug("torchett: Triton was not started ahead: %r", error)
