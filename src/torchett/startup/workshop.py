"""The tools that a GPU's kernels are made with, fetched while the model is still being traced.

    without   │ trace, lower │ Triton's driver is built │ lower │ kernels, one by one │
              │              │ workers start ───────────────────────────────────────────── │
    with      │ trace, lower │ lower │ kernels, side by side │
              │ workers start ───── │
              │ driver │

torch asks for the workers, processes that import torch first, when the first graph has been traced;
until they are there it compiles by itself. Triton builds its driver when somebody first needs it.
"""

import logging
import sys
from importlib import import_module

from torchett.record.threads import begin_beside

log = logging.getLogger("torchett")


def fetch_tools() -> None:
    """Begin to, and return; nothing is done without a GPU, or if another backend compiles."""
    torch, compiling = (sys.modules.get(name) for name in ("torch", "torch._inductor.compile_fx"))
    if torch is None or compiling is None or not torch.cuda.is_initialized():
        return
    if getattr(sys.modules.get("torchett.startup.cook"), "followed", None):
        return  # it is all compiled
    try:
        import_module("torch._inductor.async_compile").maybe_warm_pool()
        begin_beside(_wake_triton, torch.cuda.current_device(), name="ett-triton")
    except Exception as error:
        log.debug("torchett: tools are fetched when they are needed: %r", error)


def _wake_triton(device: int) -> None:
    try:
        sys.modules["torch"].cuda.set_device(device)
        import_module("triton.runtime").driver.active.get_current_target()
        import_module("triton.backends.nvidia.compiler").get_ptxas_version()
    except Exception as error:  # no Triton, or another vendor's
        log.debug("torchett: Triton is not woken: %r", error)
