"""One-time work before the first compiled step, done ahead in a standby.

    a process's first compile from the cache   ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▓▓▓   ▒ once in its life
    the same in a standby                                           ▓▓▓   ▓ for this model

Each step is short and in order of what it wins: the standby may be needed at any moment. None of
them generates code; that would run a C++ compiler for as long as a minute, and a rank that
needs the standby meanwhile would wait for it. The RNG, dynamo's caches and counters stay as they
were.
"""

import gc
import threading
from typing import Any

_hashing: threading.Thread | None = None


def begin_hashing() -> None:
    """Hash Triton, a library of 400 MB, beside what is imported next: hashing needs no lock."""
    global _hashing
    try:  # where torch will look for it, without what torch imports on the way
        from triton.runtime.cache import triton_key  # type: ignore[import-not-found]
    except ImportError:
        from triton.compiler.compiler import triton_key  # type: ignore[import-not-found]
    _hashing = threading.Thread(target=triton_key, name="ett-hash", daemon=True)
    _hashing.start()


def hash_sources() -> None:
    """Hash the sources of torch and Triton, a part of every cache key: 2,400 files."""
    import torch
    from torch._inductor.codecache import CacheBase, torch_key

    torch_key()
    if _hashing is not None:
        _hashing.join()
    if torch.cuda.is_initialized() or not torch.cuda.is_available():
        CacheBase.get_system()
    else:  # no context was requested: do only the slow part
        from torch._inductor.runtime.triton_compat import triton_key

        triton_key()


def register_backends() -> None:
    """Import inductor's code generators and passes, as it does even where all is in the cache."""
    import torch._inductor.codegen.common as common
    from torch._inductor.fx_passes import pre_grad

    common.init_backend_registration()
    pre_grad.lazy_init()


def probe_instructions() -> None:
    """Find the CPU's vector instructions and the C++ compiler, with about ten short processes.

    Only for kernels of the CPU: with a GPU they may never be asked for, and up to torch 2.11 they
    take half a minute.
    """
    import torch

    if torch.cuda.is_available():
        return
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    options = CppTorchOptions(vec_isa=pick_vec_isa())
    CppBuilder(name="o", sources="i", BuildOption=options).get_command_line()


def find_header() -> None:
    """Find the precompiled header of C++ kernels: it is named by a hash of all it includes."""
    import torch
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    if not torch.cuda.is_available():
        source = 'extern "C" void kernel(const float* x) { /* at::vec:: */ }'
        # `submit_fn` compiles nothing: only the header is found.
        CppPythonBindingsCodeCache.load_pybinding_async(
            ["const float*"], source, submit_fn=lambda work: None
        )


def walk_the_compiler() -> None:
    """Trace and differentiate small examples of common layers."""
    import torch

    state = torch.get_rng_state()
    try:
        for kind in (torch.bfloat16, None):
            _walk(torch.compile(_little_model(), backend="aot_eager"), kind)
    finally:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.set_rng_state(state)
        end_monitors()
        gc.collect()  # objects made here are freed before the rest is frozen


def end_monitors() -> None:
    """End the thread by which tqdm, where it is installed, watches the bars of torch.fx.

    A template with a second thread cannot be forked. The next bar begins another one.
    """
    for thread in threading.enumerate():
        if type(thread).__name__ == "TMonitor":
            thread.tqdm_cls.monitor = None  # type: ignore[attr-defined]
            thread.exit()  # type: ignore[attr-defined]


def _little_model() -> Any:
    from torch import nn

    class Little(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(8, 8)
            self.rows = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
            self.norm = nn.LayerNorm(8)

        def forward(self, tokens: Any) -> Any:
            x = self.table(tokens)
            for row in self.rows:
                x = x + nn.functional.gelu(row(self.norm(x)))
            q = x.view(2, 4, 2, 4).transpose(1, 2)
            x = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
            return nn.functional.cross_entropy(x.reshape(-1, 8), tokens.view(-1))

    return Little()


def _walk(model: Any, kind: Any) -> None:
    import torch

    with torch.autocast("cpu", kind or torch.bfloat16, enabled=kind is not None):
        loss = model(torch.zeros(2, 4, dtype=torch.long))
    loss.backward()
